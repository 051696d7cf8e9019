"""Who waits for whom: the order of events of each schedule, and its staleness."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.errors import EngineError, RolloutError
from miles.loops.parts import Cadence, Parts, StopFlag
from miles.loops.patience import Patience
from miles.loops.run import Run
from miles.loops.schedules import run_schedule
from miles.rollout.masking import without_old_tokens
from miles.types import Rollout, StepReport
from tests.loops.fakes import FakeParts, FakeRolloutFn, FakeSaver, HandClock, SilentTrace, Story, make_run

pytestmark = pytest.mark.unit
EACH = settings(max_examples=60, deadline=None)
cadences = st.builds(
    Cadence,
    total=st.integers(1, 7),
    update_weights_interval=st.integers(1, 3),
    eval_interval=st.none() | st.integers(1, 4),
    save_interval=st.none() | st.integers(1, 4),
    eval_before_train=st.booleans(),
)
schedules = st.sampled_from(["sync", "one_step_off", "fully_async"])


async def test_sync_takes_turns() -> None:
    run, story = make_run(Cadence(total=2, eval_before_train=False))
    await run_schedule(run, "sync")
    assert [event for event in story.events if "rollout" in event or "step" in event or "publish " in event] == [
        "begin rollout 0 v0", "end rollout 0", "begin step 0 v0", "end step 0", "publish 1",
        "begin rollout 1 v1", "end rollout 1", "begin step 1 v1", "end step 1", "publish 2",
    ]  # fmt: skip


async def test_one_step_off_generates_while_it_trains() -> None:
    run, story = make_run(Cadence(total=3, eval_before_train=False), turns=2)
    await run_schedule(run, "one_step_off")
    place = {event: number for number, event in enumerate(story.events)}
    assert place["begin step 0 v0"] < place["begin rollout 1 v0"] < place["end rollout 1"] < place["end step 0"]
    assert place["end rollout 1"] < place["publish 1"], "an update must wait for the rollout that runs"


@EACH
@given(cadence=cadences, turns=st.integers(0, 12))
async def test_one_step_off_is_at_most_one_version_stale(cadence: Cadence, turns: int) -> None:
    run, story = make_run(cadence, turns=turns)
    await run_schedule(run, "one_step_off")
    steps = [row for row in story.rows if "train/loss" in row]
    assert max(row["rollout/staleness/max"] for row in steps) <= 1
    if cadence.total > 1 and cadence.update_weights_interval == 1:
        assert [row["rollout/staleness/max"] for row in steps] == [0.0] + [1.0] * (cadence.total - 1)


async def test_fully_async_trains_on_while_engines_take_the_weights() -> None:
    run, story = make_run(Cadence(total=3, eval_interval=2, eval_before_train=False), delivery_turns=6)
    await run_schedule(run, "fully_async")
    place = {event: number for number, event in enumerate(story.events)}
    assert place["stage 1"] < place["begin step 1 v1"] < place["publish 1"] < place["stage 2"], "one publication at a time"
    assert place["published 2"] < place["evaluate v2"], "what is measured is what the engines have"
    assert all("perf/update_weights_time" in row for row in story.rows if row["rollout_id"] in (1, 2) and "train/loss" in row)


async def test_a_publication_that_fails_ends_a_policy_that_waits_for_groups() -> None:
    run, story = make_run(Cadence(total=9, eval_before_train=False), turns=1000, delivery_turns=6, fails_in="publish 1")
    with pytest.raises(EngineError, match="the engine is gone"):
        await run_schedule(run, "fully_async")
    assert "begin rollout 1 v1" in story.events
    assert "end rollout 1" not in story.events


@EACH
@given(schedule=schedules, cadence=cadences, turns=st.integers(0, 8))
async def test_the_loop_waits_for_every_publication_before_it_ends(schedule: str, cadence: Cadence, turns: int) -> None:
    run, story = make_run(cadence, delivery_turns=turns)
    await run_schedule(run, schedule)  # type: ignore[arg-type]
    staged = [event.split()[1] for event in story.events if event.startswith("stage ")]
    assert staged == [event.split()[1] for event in story.events if event.startswith("published ")]
    assert run.version == len(staged)


@EACH
@given(schedule=schedules, cadence=cadences)
async def test_every_schedule_trains_each_rollout_once_and_ends_complete(schedule: str, cadence: Cadence) -> None:
    run, story = make_run(cadence)
    await run_schedule(run, schedule)  # type: ignore[arg-type]
    assert [event for event in story.events if event.startswith("trained")] == [f"trained {k}" for k in range(cadence.total)]
    assert [row["rollout_id"] for row in story.rows if "train/loss" in row] == list(range(cadence.total))
    versions = [int(event.split()[1]) for event in story.events if event.startswith("publish ")]
    assert versions == list(range(1, len(versions) + 1)) and len(versions) == -(-cadence.total // cadence.update_weights_interval)
    last_version = versions[-1]
    assert f"save {cadence.total} v{last_version}" == story.events[-1]
    evaluations = [event for event in story.events if event.startswith("evaluate")]
    assert evaluations[-1] == f"evaluate v{last_version}", "the last weights are always measured"
    assert (evaluations[0] == "evaluate v0") >= cadence.eval_before_train
    saves = [event for event in story.events if event.startswith("save")]
    assert len(saves) == len(set(saves)), "no checkpoint is written twice"


@pytest.mark.parametrize("schedule", ["sync", "one_step_off", "fully_async"])
async def test_stop_ends_the_step_and_saves(schedule: str) -> None:
    run, story = make_run(Cadence(total=9), stop_in_step=2)
    await run_schedule(run, schedule)  # type: ignore[arg-type]
    assert run.rollouts_done == 3
    assert story.events[-1] == "save 3 v3"
    assert not any(event.startswith("begin step 3") for event in story.events)


async def test_evaluation_pauses_production_and_names_its_version() -> None:
    run, story = make_run(Cadence(total=4, update_weights_interval=2, eval_interval=1))
    await run_schedule(run, "fully_async")
    for number, event in enumerate(story.events):
        if event.startswith("evaluate"):
            assert (story.events[number - 1], story.events[number + 1]) == ("pause", "resume")
    rows = [row for row in story.rows if "eval/toy" in row]
    assert [(row["rollout_id"], row["eval/weight_version"]) for row in rows] == [(-1, 0), (0, 0), (1, 1), (2, 1), (3, 2)]


async def test_a_failed_rollout_ends_one_step_off_with_its_cause() -> None:
    run, story = make_run(Cadence(total=5), fail_at=2)
    with pytest.raises(RolloutError, match="rollout 2 failed: RuntimeError: engine gone"):
        await run_schedule(run, "one_step_off")
    assert "trained 1" in story.events and "begin step 2 v2" not in story.events


async def test_resumed_run_goes_on_where_it_was() -> None:
    run, story = make_run(Cadence(total=4), done=2, evaluated_after=0)
    await run_schedule(run, "sync")
    assert [event for event in story.events if event.startswith("begin rollout")] == ["begin rollout 2 v2", "begin rollout 3 v3"]
    assert "evaluate v2" not in story.events


@pytest.mark.parametrize("schedule", ["sync", "one_step_off", "fully_async"])
async def test_what_is_trained_is_in_the_metrics_before_it_is_in_a_checkpoint(schedule: str) -> None:
    run, story = make_run(Cadence(total=3), fails_in="publish 2")
    with pytest.raises(EngineError, match="gone"):
        await run_schedule(run, schedule)  # type: ignore[arg-type]
    await run.save()
    assert [row["rollout_id"] for row in story.rows if "train/loss" in row] == [0, 1]
    assert story.events[-1] == "save 2 v1 not published"


async def test_an_evaluation_that_failed_is_made_up_for() -> None:
    run, story = make_run(Cadence(total=2), fails_in="evaluate v2")
    with pytest.raises(RolloutError, match="the evaluation failed: ValueError: the user's evaluation"):
        await run_schedule(run, "sync")
    assert len(story.rows) == 3
    again, later = make_run(Cadence(total=2), done=2, evaluated_after=0)
    await run_schedule(again, "sync")
    assert later.events == ["pause", "evaluate v2", "resume"]
    done, nothing = make_run(Cadence(total=2), done=2, evaluated_after=2)
    await run_schedule(done, "sync")
    assert nothing.events == []


async def test_a_step_lasts_as_long_as_the_step() -> None:
    run, story = make_run(Cadence(total=3, eval_interval=1))
    await run_schedule(run, "sync")
    steps = [row for row in story.rows if "train/loss" in row]
    assert [row["perf/step_time"] for row in steps] == [11.0] * 3, "10 to train, 1 to publish; evaluations apart"
    assert [row["perf/train_time"] for row in steps] == [10.0] * 3
    assert [row["perf/tokens_per_second"] for row in steps] == [pytest.approx(4 / 11)] * 3


async def test_one_step_off_does_not_wait_for_a_rollout_it_will_not_train_on() -> None:
    run, story = make_run(Cadence(total=9), stop_in_step=1, turns=10_000)
    await run_schedule(run, "one_step_off")
    assert "end rollout 2" not in story.events
    assert story.events[-1] == "save 2 v2"


class Masked(FakeRolloutFn):
    """Rollout 1 has no token in the loss."""

    async def __call__(self, rollout_id: int, weight_version: int) -> Rollout:
        made = await super().__call__(rollout_id, weight_version)
        return made if rollout_id != 1 else replace(made, groups=tuple(without_old_tokens(group, 99) for group in made.groups))


class Skips(FakeParts):
    """A policy that leaves out one of two steps of rollout 2."""

    async def train_on(self, rollout: Rollout, policy_version: int) -> StepReport:
        report = await super().train_on(rollout, policy_version)
        skipped = {"train/empty_optimizer_steps": 1.0} if rollout.rollout_id == 2 else {}
        return replace(report, metrics=report.metrics | skipped)


async def test_steps_without_a_trained_token_are_told() -> None:
    story, stop, clock, said = Story(), StopFlag(), HandClock(), list[str]()
    fake = Skips(story, stop, clock=clock)
    parts = Parts(Masked(story), fake, fake, fake, None, FakeSaver(story), fake)
    patience = Patience(clock, None, said.append)
    run = Run(parts, Cadence(3, eval_before_train=False), clock, SilentTrace(), stop, patience=patience)
    await run_schedule(run, "sync")
    assert said == [
        "rollout 1 has no token to train on: no optimiser step is taken on it",
        "rollout 2: 1 optimiser steps had no token to train on and were not taken",
    ]
    assert [row["train/num_optimizer_steps"] for row in story.rows] == [1, 0, 1]
    assert "begin step 1 v1" not in story.events


async def test_a_long_wait_is_spoken_of() -> None:
    class Impatient(HandClock):
        async def sleep(self, seconds: float) -> None:
            if self.time >= 3 * seconds:
                await asyncio.Event().wait()
            self.time += seconds

    said: list[str] = []
    heard = asyncio.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 3:
            heard.set()

    async with Patience(Impatient(), 60.0, say).while_waiting("step 4 of the policy"):
        await asyncio.wait_for(heard.wait(), 5)
    assert said[0] == "no progress for 60 s: the loop waits for step 4 of the policy"
