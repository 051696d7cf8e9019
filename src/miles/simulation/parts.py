"""What stands in for policy, publisher, generator, files and screen while the real loop runs."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from miles.clock import Clock
from miles.rollout.partial import is_whole, joined
from miles.simulation.cores import Cores, Process
from miles.simulation.engines import Spans
from miles.simulation.fleet import SimulatedFleet
from miles.simulation.workload import Workload
from miles.types import Group, Metrics, Prompt, Rollout, Sample, SampleStatus, StepReport


@dataclass(frozen=True, slots=True)
class SimulatedGenerator:
    """Groups whose answers have drawn lengths; one and the same group has the same lengths in every schedule.

    Rewards are drawn, too: half of the samples get 1. driver: asks, reads and scores.
    """

    clock: Clock
    driver: Process
    fleet: SimulatedFleet
    workload: Workload
    num_samples: int
    timeout_seconds: float
    together: bool

    async def __call__(self, prompt: Prompt, version_admitted: int, begun: Group | None = None) -> Group:
        """The group, once the engines have decoded it; as far as they have if they were interrupted.

        Raises:
            TimeoutError: that took longer than ``rollout_timeout_seconds``.
        """
        rngs = [random.Random(f"{prompt.index}/{place}") for place in range(self.num_samples)]
        lengths = [self.workload.draw(rng) for rng in rngs]
        earlier = dict(enumerate(begun.samples)) if begun else {}
        missing = [place for place in range(self.num_samples) if place not in earlier or not is_whole(earlier[place])]
        rest = [lengths[place] - (len(earlier[place].response_ids) if earlier else 0) for place in missing]
        async with asyncio.timeout(self.timeout_seconds):
            await self.clock.sleep(self.workload.overheads.group_wait_seconds)
            answers = await self.fleet.generate(rest, together=self.together)
            await self.driver.work(self.workload.overheads.driver_group_seconds)
        later = {place: answer(prompt, place, spans) for place, spans in zip(missing, answers, strict=True)}
        samples = earlier | {place: joined(earlier[place], one) if earlier else one for place, one in later.items()}
        whole = all(len(samples[place].response_ids) >= lengths[place] for place in samples)
        return Group(
            prompt, tuple(ended(samples[place], lengths[place], rng if whole else None) for place, rng in enumerate(rngs)),
            version_admitted,
        )  # fmt: skip


def answer(prompt: Prompt, place: int, spans: Spans) -> Sample:
    """A sample of as many tokens as its spans cover."""
    length = spans[-1].end if spans else 0
    return Sample(
        group_index=prompt.index,
        sample_index=place,
        prompt_ids=prompt.token_ids,
        response_ids=(0,) * length,
        logprobs=(0.0,) * length,
        loss_mask=(1,) * length,
        versions=spans,
        status=SampleStatus.ABORTED,
    )


def ended(sample: Sample, length: int, rng: random.Random | None) -> Sample:
    """The sample with its ending; its reward is drawn where the whole group has ended."""
    status = SampleStatus.COMPLETED if len(sample.response_ids) >= length else SampleStatus.ABORTED
    return replace(sample, status=status, reward=None if rng is None else float(rng.random() < 0.5))


@dataclass(slots=True)
class SimulatedPolicy:
    """Takes its time in proportion to the tokens, once the driver has handed them over. busy_seconds: time spent training.

    host: the cores of whatever else runs beside; cores: its own ranks'.
    """

    clock: Clock
    driver: Process
    host: Cores
    cores: Cores
    workload: Workload
    num_ranks: int
    num_steps: int
    busy_seconds: float = 0.0

    async def train_on(self, rollout: Rollout, policy_version: int) -> StepReport:
        """Let the seconds of a training step pass."""
        overheads = self.workload.overheads
        await self.driver.work(overheads.driver_train_seconds)
        began = self.clock.now()
        beside = asyncio.create_task(self.host.work(overheads.others_seconds))
        await self.compute(self.workload.speeds.train_step(sum(len(sample.response_ids) for sample in rollout.samples)))
        self.busy_seconds += self.clock.now() - began
        await beside
        await self.clock.sleep(overheads.train_wait_seconds)
        return StepReport({}, self.num_steps)

    async def compute(self, seconds: float) -> None:
        """Every rank for so long."""
        await asyncio.gather(*(self.cores.work(seconds) for _ in range(self.num_ranks)))


@dataclass(frozen=True, slots=True)
class SimulatedPublisher:
    """Exports while engines go on, then holds them for the update; ``delivers_alone`` as the run's publisher.

    retracts: whether what was running is computed again.
    """

    clock: Clock
    driver: Process
    policy: SimulatedPolicy
    fleet: SimulatedFleet
    workload: Workload
    delivers_alone: bool
    retracts: bool

    async def stage(self, version: int) -> None:
        """The policy exports."""
        await self.driver.work(self.workload.overheads.driver_export_seconds)
        await self.policy.compute(self.workload.speeds.export_seconds)
        await self.clock.sleep(self.workload.overheads.export_wait_seconds)

    async def deliver(self, version: int) -> Metrics:
        """Bring every engine to ``version``."""
        await self.fleet.pause()
        await self.driver.work(self.workload.overheads.driver_update_seconds)
        await self.fleet.take_weights(self.workload.speeds.pause_seconds)
        await self.clock.sleep(self.workload.overheads.update_wait_seconds)
        self.fleet.go_on(version, retracts=self.retracts)
        return {}


@dataclass(slots=True)
class Rows:
    """A journal that remembers, and a saver that does not."""

    rows: list[Metrics] = field(default_factory=list)

    def write(self, row: Metrics, rollouts_done: int) -> None:
        """Keep the row."""
        self.rows.append(dict(row))

    async def save(self, rollouts_done: int, weight_version: int, *, weights_published: bool) -> None:
        """Write nothing."""

    async def settle(self) -> None:
        """Nothing is being written."""


class NoTrace:
    """Records no spans."""

    @contextmanager
    def span(self, lane: str, name: str, **args: int | float | str) -> Iterator[None]:
        """Nothing."""
        yield
