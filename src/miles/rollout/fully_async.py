"""The fully async rollout function: a producer keeps the engines full, the policy takes batches from a buffer.

    producer  ── admit while pacing allows ──► group tasks ── accepted ──► buffer ── may_take ──► the policy
        ▲                                          │ dropped                                         │
        └── wakes: a group ended, a batch was taken, weights were published, engines have room, resume ◄┘

Everything happens on events; nothing polls. The buffer's bound and the concurrency limit admission alone, so a finished
group always has a place. No group is admitted while requests wait for room at the engines: begun later, it is fresher. When the
policy may take a batch, and what becomes of groups that are too old, is the staleness control's to say
(``staleness_control``): under ``pace`` the policy waits for groups that would otherwise come too late.
"""

import asyncio
from collections import Counter
from functools import partial
from typing import NoReturn

from miles.config.dotted import load_dotted
from miles.config.options.rollout import FullyAsync
from miles.errors import RolloutError
from miles.failures import first_failure
from miles.rollout import pacing
from miles.rollout.attempts import Attempts, Flight
from miles.rollout.buffer import DataBuffer, PacedBuffer
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.discards import Discards
from miles.rollout.handover import Handover
from miles.rollout.masking import masked_metrics, oldest_trained_version
from miles.rollout.metrics import fully_async_metrics
from miles.rollout.progress import ProgressWatch
from miles.rollout.staleness_control import control_for
from miles.types import Group, Metrics, Rollout


class FullyAsyncRolloutFn:
    """Built once; production starts with the first call and ends with ``close``."""

    takes_finished_groups = True

    def __init__(self, given: RolloutFnInput) -> None:
        options = fully_async_options(given)
        self._rule = pacing_rule(given, options)
        self._control = control_for(options.staleness_control, self._rule)
        self._policy = pacing.at_step(self._rule, given.first_rollout_id, given.weight_version)
        self._published = given.weight_version
        self._ledger, self._room = given.ledger, given.room
        self._buffer = new_buffer(options.custom_async_data_buffer_path)
        for group in given.ledger.finished():
            self._buffer.put(group)
        self._chosen: list[Group] = []
        self._discards = Discards(given)
        self._attempts, self._handover = Attempts(given), Handover(given)
        self._watch = ProgressWatch(given.clock, options.no_progress_seconds, given.say, self._describe)
        self._paused = self._closed = self._waiting = False
        self._admission, self._changed = asyncio.Event(), asyncio.Event()
        if self._room is not None:
            self._room.on_room(self._admission.set)
        self._producer: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._sent_back = 0

    async def __call__(self, rollout_id: int, weight_version: int) -> Rollout:
        """The batch of step ``rollout_id``, as soon as pacing lets the policy have it.

        Raises:
            RolloutError: the producer or one of its groups failed; the cause is chained.
        """
        if self._closed or rollout_id != self._policy.steps_taken:
            state = "closed" if self._closed else f"at step {self._policy.steps_taken}"
            raise RolloutError(f"rollout {rollout_id} was asked of a producer that is {state}. Ask for rollouts in order")
        self._start()
        self._policy = pacing.at_step(self._rule, rollout_id, weight_version)
        self._send_back_overdue()
        self._admission.set()
        groups = await self._next_batch(rollout_id, weight_version)
        metrics = self._measure(weight_version, groups)
        rollout = self._handover.hand_over(rollout_id, groups, metrics, self._control.mask_for(weight_version))
        self._check(weight_version, rollout)
        return rollout

    def published(self, version: int) -> None:
        """Groups admitted from now on count from ``version``.

        Raises:
            RolloutError: it is older than the one before.
        """
        if version < self._published:
            raise RolloutError(f"weight version {version} was published after {self._published}. Versions only grow")
        self._published = version
        self._policy = pacing.after_publish(self._rule, self._policy, version)
        self._send_back_overdue()
        self._moved()

    async def pause(self) -> None:
        """Admit nothing; groups in flight go on and finished ones are kept."""
        self._paused = True

    def resume(self) -> None:
        """Admit again."""
        self._paused = False
        self._moved()

    async def close(self) -> None:
        """End production; groups in flight go back to waiting, finished ones stay buffered in the ledger."""
        self._closed = True
        tasks = [task for task in (self._producer, self._watcher) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _num_finished(self) -> int:
        return sum(self._buffer.counts_by_version().values()) + len(self._chosen)

    def _start(self) -> None:
        if self._producer is None:
            self._watch.moved()
            self._producer = asyncio.create_task(self._produce(), name="rollout producer")
            self._producer.add_done_callback(lambda _: self._changed.set())
            self._watcher = asyncio.create_task(self._watch.run(), name="rollout progress")

    def _moved(self) -> None:
        self._watch.moved()
        self._admission.set()
        self._changed.set()

    async def _produce(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                while self._may_admit():
                    flight = self._attempts.begin(self._published)
                    flight.task = tasks.create_task(self._run(flight), name=f"group {flight.prompt.index}")
                    # a task that is cancelled before its first step runs none of its own code
                    flight.task.add_done_callback(partial(self._ended, flight))
                    self._watch.moved()
                    if self._room is not None:
                        await asyncio.sleep(0)  # the group gets as far as the engines, whose room is looked at next
                self._admission.clear()
                await self._admission.wait()

    def _may_admit(self) -> bool:
        flying = len(self._attempts.flights)
        if self._paused or (self._room is not None and not self._room.has_room):
            return False
        return self._control.may_admit(self._policy, self._published, flying, self._num_finished)

    async def _run(self, flight: Flight) -> None:
        group = await self._attempts.run(flight)
        if group is not None:
            self._buffer.put(group)
        self._moved()

    def _ended(self, flight: Flight, _: "asyncio.Task[None]") -> None:
        self._attempts.recall(flight)

    async def _next_batch(self, rollout_id: int, policy_version: int) -> list[Group]:
        while True:
            await self._until_takeable(rollout_id)
            missing = self._rule.batch_size - len(self._chosen)
            candidates = [*self._chosen, *self._buffer.take(missing)]
            self._chosen = self._discards.sift(candidates, policy_version, self._control.is_too_old)
            self._moved()
            if len(self._chosen) == self._rule.batch_size:
                break
        groups, self._chosen = self._chosen, []
        self._policy = self._policy.after_take()
        self._moved()
        return groups

    async def _until_takeable(self, rollout_id: int) -> None:
        self._waiting = True
        try:
            while not self._may_take(rollout_id):
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._waiting = False

    def _may_take(self, rollout_id: int) -> bool:
        if self._producer is not None and self._producer.done():
            self._raise_failure(self._producer, rollout_id)
        finished = Counter(self._buffer.counts_by_version())
        finished.update(group.version_admitted for group in self._chosen)
        return self._control.may_take(self._policy, self._attempts.flights.counts_by_version(), finished)

    def _raise_failure(self, producer: "asyncio.Task[None]", rollout_id: int) -> NoReturn:
        error = None if producer.cancelled() else producer.exception()
        cause = None if error is None else first_failure(error)
        raise RolloutError(f"rollout {rollout_id} failed, production has ended: {cause or 'it was cancelled'}") from cause

    def _send_back_overdue(self) -> None:
        flights, finished = self._attempts.flights, self._buffer.counts_by_version()
        num_flying, num_finished = self._control.overdue(self._policy, flights.counts_by_version(), finished)
        for flight in flights.oldest(num_flying):
            self._attempts.recall(flight)
        for group in self._buffer.take(num_finished) if num_finished else []:
            self._ledger.put_back(group.index)
        self._sent_back += num_flying + num_finished

    def _measure(self, policy_version: int, groups: list[Group]) -> Metrics:
        left = self._buffer.counts_by_version()
        metrics = fully_async_metrics(groups, policy_version, left, len(self._attempts.flights))
        metrics["rollout/fully_async/sent_back"], self._sent_back = float(self._sent_back), 0
        if self._control.mask_for(policy_version) is not None:
            metrics |= masked_metrics(groups, policy_version - self._rule.max_staleness)
        return metrics | self._discards.metrics(groups)

    def _check(self, policy_version: int, rollout: Rollout) -> None:
        versions = [version for group in rollout.groups if (version := oldest_trained_version(group)) is not None]
        lag = policy_version - min(versions, default=policy_version)
        if lag > self._rule.max_staleness:
            raise RolloutError(
                f"a batch of staleness {lag} came out of {type(self._buffer).__name__}, the bound is {self._rule.max_staleness} "
                "(--max-weight-staleness). A buffer of your own must hand out the oldest versions first"
            )

    def _describe(self) -> str:
        have = f"{self._num_finished} groups finished, {self._attempts.flights.describe()}, version {self._published} published"
        if self._paused:
            return f"production is paused; {have}"
        if not self._waiting:
            return f"the engines wait for the policy; {have}"
        wanted = f"{self._rule.batch_size} groups for rollout {self._policy.steps_taken}"
        if self._num_finished >= self._rule.batch_size:
            return f"the policy waits for older groups in flight before it takes {wanted}; {have}"
        return f"the policy waits for {wanted}; {have}"


def fully_async_options(given: RolloutFnInput) -> FullyAsync:
    """The options of this schedule.

    Raises:
        RolloutError: the run has another schedule.
    """
    options = given.config.rollout
    if not isinstance(options, FullyAsync):
        raise RolloutError(f"FullyAsyncRolloutFn was built for a run with {type(options).__name__}. Pass --fully-async")
    return options


def pacing_rule(given: RolloutFnInput, options: FullyAsync) -> pacing.PacingRule:
    """The rule by the options; limits given in samples or batches become groups."""
    batch_size, num_samples = given.config.data.rollout_batch_size, given.config.data.n_samples_per_prompt
    limit, factor = options.async_max_concurrent_samples, options.async_data_buffer_capacity_factor
    return pacing.PacingRule(
        batch_size=batch_size,
        update_interval=options.update_weights_interval,
        max_staleness=options.max_weight_staleness,
        num_steps=given.derived.num_rollout,
        capacity_groups=None if factor is None else int(factor * batch_size),
        concurrent_groups=None if limit is None else limit // num_samples,
    )


def new_buffer(path: str | None) -> DataBuffer:
    """The standard buffer, or the user's."""
    if path is None:
        return PacedBuffer()
    buffer: DataBuffer = load_dotted(path, "custom_async_data_buffer_path", kind="buffer")()
    return buffer
