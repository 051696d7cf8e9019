"""What stands in for policy, publisher, generator, files and screen while the real loop runs."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from miles.clock import Clock
from miles.simulation.engines import SimulatedFleet
from miles.simulation.workload import Speeds, Workload
from miles.types import Group, Metrics, Prompt, Rollout, Sample, SampleStatus, StepReport


@dataclass(frozen=True, slots=True)
class SimulatedGenerator:
    """Groups whose answers have drawn lengths; one and the same group has the same lengths in every schedule.

    Rewards are drawn, too: half of the samples get 1.
    """

    fleet: SimulatedFleet
    workload: Workload
    num_samples: int
    timeout_seconds: float
    together: bool

    async def __call__(self, prompt: Prompt, version_admitted: int) -> Group:
        """The group, once the engines have decoded it.

        Raises:
            TimeoutError: that took longer than ``rollout_timeout_seconds``.
        """
        rngs = [random.Random(f"{prompt.index}/{place}") for place in range(self.num_samples)]
        lengths = [self.workload.draw(rng) for rng in rngs]
        async with asyncio.timeout(self.timeout_seconds):
            answers = await self.fleet.generate(lengths, together=self.together)
        samples = [
            Sample(
                group_index=prompt.index,
                sample_index=place,
                prompt_ids=prompt.token_ids,
                response_ids=(0,) * length,
                logprobs=(0.0,) * length,
                loss_mask=(1,) * length,
                versions=spans,
                status=SampleStatus.COMPLETED,
                reward=float(rng.random() < 0.5),
            )
            for place, (rng, length, spans) in enumerate(zip(rngs, lengths, answers, strict=True))
        ]
        return Group(prompt, tuple(samples), version_admitted)


@dataclass(slots=True)
class SimulatedPolicy:
    """Takes its time in proportion to the tokens. busy_seconds: time spent training."""

    clock: Clock
    speeds: Speeds
    num_steps: int
    busy_seconds: float = 0.0

    async def train_on(self, rollout: Rollout, policy_version: int) -> StepReport:
        """Let the seconds of a training step pass."""
        seconds = self.speeds.train_step(sum(len(sample.response_ids) for sample in rollout.samples))
        await self.clock.sleep(seconds)
        self.busy_seconds += seconds
        return StepReport({}, self.num_steps)


@dataclass(frozen=True, slots=True)
class SimulatedPublisher:
    """Exports while engines go on, then holds them for the update."""

    clock: Clock
    fleet: SimulatedFleet
    speeds: Speeds

    async def publish(self, version: int) -> Metrics:
        """Bring every engine to ``version``."""
        await self.clock.sleep(self.speeds.export_seconds)
        self.fleet.steer(paused=True)
        await self.clock.sleep(self.speeds.pause_seconds)
        self.fleet.publish(version)
        self.fleet.steer(paused=False)
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
