"""Stand-ins for the parts of a loop, which write down who did what in which order."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from miles.errors import EngineError
from miles.loops.parts import Cadence, Parts, StopFlag
from miles.loops.run import Run
from miles.types import Group, Metrics, Prompt, Rollout, Sample, SampleStatus, StepReport, VersionSpan


def make_group(index: int, version: int, num_samples: int = 2) -> Group:
    """A group whose tokens were all sampled under ``version``."""
    prompt = Prompt(index, index, 0, "q", (1, 2))
    samples = tuple(
        Sample(
            index, number, (1, 2), (3, 4), (-0.5, -0.5), (1, 1), (VersionSpan(version, 0, 2),), SampleStatus.COMPLETED, "a", 1.0
        )
        for number in range(num_samples)
    )
    return Group(prompt, samples, version)


@dataclass
class Story:
    """Events in the order in which they happened."""

    events: list[str] = field(default_factory=list)
    rows: list[Metrics] = field(default_factory=list)

    def tell(self, event: str) -> None:
        """Add an event."""
        self.events.append(event)


@dataclass
class FakeRolloutFn:
    """Makes one-group rollouts; yields to the event loop as often as ``turns`` says."""

    story: Story
    turns: int = 3
    fail_at: int | None = None

    async def __call__(self, rollout_id: int, weight_version: int) -> Rollout:
        self.story.tell(f"begin rollout {rollout_id} v{weight_version}")
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if rollout_id == self.fail_at:
            raise RuntimeError("engine gone")
        self.story.tell(f"end rollout {rollout_id}")
        return Rollout(rollout_id, (make_group(rollout_id, weight_version),), {"rollout/num_tokens": 4.0})

    def published(self, version: int) -> None:
        self.story.tell(f"published {version}")

    async def pause(self) -> None:
        self.story.tell("pause")

    def resume(self) -> None:
        self.story.tell("resume")

    async def close(self) -> None:
        self.story.tell("close")


@dataclass
class HandClock:
    """Time passes when a fake says so; who sleeps, sleeps for ever."""

    time: float = 0.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


@dataclass
class FakeParts:
    """Ledger, policy, publisher, evaluator, saver and journal in one."""

    story: Story
    stop: StopFlag = field(default_factory=StopFlag)
    stop_in_step: int | None = None
    fails_in: str = ""
    turns: int = 5
    clock: HandClock = field(default_factory=HandClock)
    delivery_turns: int = 0

    @property
    def delivers_alone(self) -> bool:
        return self.delivery_turns > 0

    def mark_trained(self, rollout: Rollout) -> None:
        self.story.tell(f"trained {rollout.rollout_id}")

    def counts(self) -> Metrics:
        return {"ledger/trained": 1.0}

    async def train_on(self, rollout: Rollout, policy_version: int) -> StepReport:
        self.story.tell(f"begin step {rollout.rollout_id} v{policy_version}")
        self.stop.requested |= rollout.rollout_id == self.stop_in_step
        for _ in range(self.turns):
            await asyncio.sleep(0)
        self.clock.time += 10
        self.story.tell(f"end step {rollout.rollout_id}")
        return StepReport({"train/loss": 0.5}, 1)

    async def load(self, folder: Path) -> None:
        self.story.tell("load")

    async def stage(self, version: int) -> None:
        self.story.tell(f"stage {version}")

    async def deliver(self, version: int) -> Metrics:
        for _ in range(self.delivery_turns):
            await asyncio.sleep(0)
        if self.fails_in == f"publish {version}":
            raise EngineError("the engine is gone")
        self.clock.time += 1
        self.story.tell(f"publish {version}")
        return {"perf/update_weights_time": 0.0}

    async def __call__(self, weight_version: int) -> Metrics:
        if self.fails_in == f"evaluate v{weight_version}":
            raise ValueError("the user's evaluation")
        self.clock.time += 100
        self.story.tell(f"evaluate v{weight_version}")
        return {"eval/toy": 0.5}

    def write(self, row: Metrics, rollouts_done: int) -> None:
        self.story.rows.append(dict(row))


class FakeSaver:
    """Writes down what was saved."""

    def __init__(self, story: Story) -> None:
        self.story = story

    async def save(self, rollouts_done: int, weight_version: int, *, weights_published: bool) -> None:
        self.story.tell(f"save {rollouts_done} v{weight_version}{'' if weights_published else ' not published'}")

    async def settle(self) -> None:
        """Nothing is being written."""


class SilentTrace:
    """Records nothing."""

    @contextmanager
    def span(self, lane: str, name: str, **args: int | float | str) -> Iterator[None]:
        yield


def make_run(
    cadence: Cadence,
    *,
    stop_in_step: int | None = None,
    fail_at: int | None = None,
    turns: int = 3,
    done: int = 0,
    fails_in: str = "",
    evaluated_after: int = -1,
    delivery_turns: int = 0,
) -> tuple[Run, Story]:
    """A run over fakes, and the story it writes; with ``delivery_turns`` engines take weights while the policy goes on."""
    story, stop = Story(), StopFlag()
    clock = HandClock()
    fake = FakeParts(story, stop, stop_in_step, fails_in, clock=clock, delivery_turns=delivery_turns)
    parts = Parts(FakeRolloutFn(story, turns, fail_at), fake, fake, fake, fake, FakeSaver(story), fake)
    return Run(parts, cadence, clock, SilentTrace(), stop, done, done, evaluated_after), story
