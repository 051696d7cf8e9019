"""One run in progress: the verbs that the three schedules put in different orders, each timed and traced."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from miles.clock import Clock
from miles.errors import MilesError, RolloutError
from miles.loops.beside import Beside, Point
from miles.loops.parts import Cadence, Evaluator, Parts, StopFlag
from miles.loops.patience import Patience
from miles.loops.publications import Publications
from miles.rollout.masking import has_trained_token
from miles.tracking.trace import Spans
from miles.types import Metrics, Rollout, StepReport, mean, staleness


class Run:
    """State of a run between its steps: how many rollouts are trained, which version is published.

    The loop is its only owner and calls one verb at a time, except that ``generate`` may run beside ``train``, and a publication
    beside both. ``version`` is the policy's; engines have it once the publication is settled.
    """

    def __init__(
        self,
        parts: Parts,
        cadence: Cadence,
        clock: Clock,
        trace: Spans,
        stop: StopFlag,
        rollouts_done: int = 0,
        version: int = 0,
        evaluated_after: int = -1,
        patience: Patience | None = None,
    ) -> None:
        self.cadence, self.version, self.rollouts_done, self.training = cadence, version, rollouts_done, False
        self.saved_after, self.evaluated_after, self._published_after = rollouts_done, evaluated_after, rollouts_done
        self._parts, self._clock, self._trace, self._stop = parts, clock, trace, stop
        self._row: Metrics = {}
        self._patience = patience or Patience(clock)
        self.publications = Publications(parts, trace, self._patience)
        self._step_began = self._idle_since = clock.now()

    def remaining(self) -> Iterator[int]:
        """Rollout ids still to be trained; ends early once a stop was requested."""
        while self.rollouts_done < self.cadence.total and not self._stop.requested:
            yield self.rollouts_done

    @property
    def stopping(self) -> bool:
        """Whether the loop ends after the step it is in."""
        return self._stop.requested

    async def generate(self, rollout_id: int) -> Rollout:
        """The groups of ``rollout_id`` under the version published now."""
        begin = self._clock.now()
        with self._trace.span("rollout", f"rollout {rollout_id}", version=self.version), named(f"rollout {rollout_id}"):
            rollout = await self.publications.unless_one_fails(self._parts.rollout(rollout_id, self.version))
        return replace(rollout, metrics=rollout.metrics | {"perf/rollout_time": self._clock.now() - begin})

    async def train(self, rollout: Rollout) -> None:
        """Take the policy's steps; staleness is taken here, on the policy's clock."""
        begin = self._clock.now()
        self._row.update(rollout.metrics | staleness_metrics(self.version, rollout))
        self._row["perf/train_wait_time"] = begin - self._idle_since
        self.training = True
        with self._trace.span("policy", f"step {rollout.rollout_id}", version=self.version):
            async with self._patience.while_waiting(f"step {rollout.rollout_id} of the policy"):
                report = await self._take_steps(rollout)
        self._parts.ledger.mark_trained(rollout)
        self.training, self._idle_since = False, self._clock.now()
        self._row["perf/train_time"] = self._idle_since - begin
        self.rollouts_done = rollout.rollout_id + 1
        self._row |= report.metrics | off_policy_metrics(report)

    async def _take_steps(self, rollout: Rollout) -> StepReport:
        """The policy's steps; none where no token is in the loss, and then the user is told."""
        if not has_trained_token(rollout.groups):
            self._patience.say(f"rollout {rollout.rollout_id} has no token to train on: no optimiser step is taken on it")
            return StepReport({}, 0)
        report = await self._parts.policy.train_on(rollout, self.version)
        if empty := report.metrics.get("train/empty_optimizer_steps"):
            self._patience.say(
                f"rollout {rollout.rollout_id}: {empty:.0f} optimiser steps had no token to train on and were not taken"
            )
        return report

    async def publish_if_due(self, *, in_background: bool = False) -> None:
        """Publish the policy's weights under the next version, in flight, every ``update_weights_interval`` rollouts.

        in_background: the policy may go on once its weights are staged; see ``Publications.publish``.
        """
        if not self.cadence.publishes_after(self.rollouts_done):
            return
        await self.publications.publish(self.version + 1, in_background=in_background)
        self.version, self._published_after = self.version + 1, self.rollouts_done
        await self.hold_if_measured()

    async def hold_if_measured(self) -> None:
        """Keep the published weights for an evaluation beside training that will ask for them."""
        if self._parts.beside is not None and self.cadence.measures_version_of(self.rollouts_done):
            await self._parts.beside.hold(self.version)

    async def finish_step(self) -> None:
        """Write the step's row, then evaluate and save where due; an evaluation that failed beside the step is told now."""
        if self.stopping or self.cadence.evaluates_after(self.rollouts_done) or self.cadence.saves_after(self.rollouts_done):
            await self.publications.settle()
        self._write_row()
        if self._parts.beside is not None:
            self._parts.beside.check()
        if self.cadence.evaluates_after(self.rollouts_done):
            await self.evaluate()
        if self.cadence.saves_after(self.rollouts_done):
            await self.save()

    def _write_row(self) -> None:
        """The row of the step that was trained last, unless it is written already."""
        if not self._row:
            return
        now = self._clock.now()
        seconds, self._step_began = now - self._step_began, now
        self._row |= self.publications.take_metrics()
        self._row |= self._parts.ledger.counts() | {"rollout_id": self.rollouts_done - 1, "weight_version": self.version}
        self._row |= {"perf/step_time": seconds}
        self._row |= {"perf/tokens_per_second": self._row.get("rollout/num_tokens", 0.0) / max(seconds, 1e-9)}
        self._parts.journal.write(self._row, self.rollouts_done)
        self._row = {}

    async def evaluate_if_due(self) -> None:
        """Make up for an evaluation that a failure or a stop left out: the cadence asks for it and nobody has done it."""
        if self.cadence.evaluates_after(self.rollouts_done) and self.rollouts_done > 0:
            await self.evaluate()

    async def evaluate(self) -> None:
        """Measure the published weights; the row names the version. Production pauses, or it goes on beside a snapshot."""
        if self.evaluated_after == self.rollouts_done:
            return
        if self._parts.beside is not None:
            await self._begin_beside(self._parts.beside)
        elif self._parts.evaluator is not None:
            await self._evaluate_here(self._parts.evaluator)
        else:
            return
        self.evaluated_after = self.rollouts_done
        self._step_began = self._idle_since = self._clock.now()

    async def _begin_beside(self, beside: Beside) -> None:
        done = self.rollouts_done

        def write(row: Metrics) -> None:
            self._parts.journal.write({"rollout_id": done - 1} | row, self.rollouts_done)

        async with self._patience.while_waiting("the evaluation before to end"):
            await beside.begin(Point(done, self.version, done == self.cadence.total, write))

    async def _evaluate_here(self, evaluator: Evaluator) -> None:
        begin = self._clock.now()
        async with self._production_paused():
            with self._trace.span("evaluation", f"evaluate version {self.version}"), named("the evaluation"):
                async with self._patience.while_waiting(f"the evaluation of weights version {self.version}"):
                    row = await evaluator(self.version)
        row |= {"eval/weight_version": self.version, "perf/eval_time": self._clock.now() - begin}
        self._parts.journal.write({"rollout_id": self.rollouts_done - 1} | row, self.rollouts_done)

    async def end(self) -> None:
        """What is still due at the end: a checkpoint, then the result of an evaluation beside; a stop does not wait for it."""
        await self.save()
        if self._parts.beside is not None and self.stopping:
            await self._parts.beside.close()
        elif self._parts.beside is not None:
            async with self._patience.while_waiting("the last evaluation"):
                await self._parts.beside.drain()
        await self.settle()

    async def save(self) -> None:
        """Write a checkpoint of this moment, unless it is written already; the step's row always comes first."""
        self._write_row()
        if self.saved_after == self.rollouts_done:
            return
        with self._trace.span("checkpoint", f"save after rollout {self.rollouts_done - 1}"):
            published = self._published_after == self.rollouts_done
            async with self._patience.while_waiting("the checkpoint to be written"):
                await self._parts.saver.save(self.rollouts_done, self.version, weights_published=published)
        self.saved_after = self.rollouts_done
        self._step_began = self._idle_since = self._clock.now()

    async def settle(self) -> None:
        """Wait for a checkpoint that is still being written."""
        async with self._patience.while_waiting("the last checkpoint to be written"):
            await self._parts.saver.settle()

    @asynccontextmanager
    async def _production_paused(self) -> AsyncIterator[None]:
        await self._parts.rollout.pause()
        try:
            yield
        finally:
            self._parts.rollout.resume()


@contextmanager
def named(what: str) -> Iterator[None]:
    """Whatever the user's code raises becomes an error that says where; miles's own errors pass."""
    try:
        yield
    except MilesError:
        raise
    except Exception as error:
        raise RolloutError(f"{what} failed: {type(error).__name__}: {error}") from error


def staleness_metrics(policy_version: int, rollout: Rollout) -> Metrics:
    """Mean and maximum staleness of the groups the policy is about to train on, in weight versions."""
    lags = [float(staleness(policy_version, group)) for group in rollout.groups]
    return {"rollout/staleness/mean": mean(lags), "rollout/staleness/max": max(lags, default=0.0)}


def off_policy_metrics(report: StepReport) -> Metrics:
    """Optimiser steps taken on the rollout, and how many of them began from weights younger than its staleness says."""
    steps = report.num_optimizer_steps
    return {"train/num_optimizer_steps": float(steps), "train/off_policy_steps": float(max(steps - 1, 0))}
