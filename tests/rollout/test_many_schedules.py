"""Thousands of random schedules on virtual time, through the real ledger, pacing, buffer, controls and rollout function.

Everything at once: updates, answers that span versions, aborted groups, rewards that fail, filters, retries, pauses, limits,
restarts from checkpoints at any moment. The loop raises ``DeadlockError`` when nothing can happen any more.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from miles.config.options.rollout import FullyAsync, SyncRollout
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.fully_async import FullyAsyncRolloutFn
from miles.rollout.inference import InferenceRolloutFn
from miles.rollout.masking import oldest_trained_version
from miles.simulation.virtual_time import run_virtual
from miles.types import Group, Prompt, Rollout, VersionSpan, staleness

from .simulated import CheckedLedger, given, sample

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
NUM_SCHEDULES, PARTS = 3000, 6
SPREAD = "miles.rollout.filters:has_reward_spread"
QUIET = 2e9  # beyond the virtual loop's horizon, so that a deadlock is seen


@dataclass(frozen=True)
class Schedule:
    """One random schedule, all of it from its seed."""

    seed: int

    def __getattr__(self, name: str) -> Any:
        choices: dict[str, list[Any]] = {
            "control": ["pace", "pace", "mask", "filter"],
            "batch_size": [1, 2, 3, 5],
            "interval": [1, 1, 2, 3],
            "bound": [0, 0, 1, 2, 4],
            "steps": [3, 6, 12],
            "filters": [False, False, True],
            "abort_share": [0.0, 0.1],
            "failed_share": [0.0, 0.1],
            "handler": ["retry", "retry", "drop"],
            "train_seconds": [0.1, 1.0, 5.0],
            "concurrency": [None, None, 0.1, 0.5],
            "capacity": [None, None, 1.0, 1.5],
            "evaluates": [False, True],
            "save_interval": [1, 2],
            "kills": [0, 0, 0, 1, 3],
        }
        return random.Random(f"{self.seed}/{name}").choice(choices[name])

    @property
    def equals_sync(self) -> bool:
        """Whether it must train on what the synchronous loop trains on."""
        return self.bound == 0 and self.interval == 1 and self.control == "pace" and self.kills == 0

    def options(self) -> FullyAsync:
        admitted = (self.bound + 1) * self.interval
        return FullyAsync(
            update_weights_interval=self.interval,
            max_weight_staleness=self.bound,
            staleness_control=self.control,
            async_unused_samples_handler=self.handler,
            dynamic_sampling_filter_path=SPREAD if self.filters else None,
            async_max_concurrent_samples=self.concurrency and max(2, round(self.concurrency * admitted * self.batch_size * 2)),
            async_data_buffer_capacity_factor=self.capacity and min(self.capacity, float(admitted)),
            no_progress_seconds=QUIET,
        )

    def sync_options(self) -> SyncRollout:
        """``drop`` of a failed group stands for no retries at all there."""
        retries = 0 if self.handler == "drop" else 2
        path = SPREAD if self.filters else None
        return SyncRollout(dynamic_sampling_filter_path=path, max_group_retries=retries, no_progress_seconds=QUIET)


@dataclass
class Engines:
    """A token a while, under the version published then; what becomes of a group follows from its index and attempt alone."""

    schedule: Schedule
    version: int = 0
    running: int = 0
    most_running: int = 0
    attempts: Counter[int] = field(default_factory=Counter)

    async def __call__(self, asked: Prompt, version_admitted: int) -> Group:
        self.attempts[asked.index] += 1
        rng = random.Random(f"{self.schedule.seed}/{asked.index}/{self.attempts[asked.index]}")
        length, pace = rng.choice([1, 2, 2, 3, rng.randint(4, 12)]), rng.choice([0.05, 0.3, 2.0])
        versions = []
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            for _ in range(length):
                versions.append(max(self.version, version_admitted))
                await asyncio.sleep(pace * rng.random())
        finally:
            self.running -= 1
        if rng.random() < self.schedule.abort_share:
            raise TimeoutError(f"group {asked.index} took too long")
        rewards = (None, None) if rng.random() < self.schedule.failed_share else (0.0, float(asked.index % 3 != 1))
        spans = tuple(VersionSpan(version, place, place + 1) for place, version in enumerate(versions))
        columns: dict[str, Any] = {
            "response_ids": (7,) * length, "logprobs": (-0.5,) * length, "loss_mask": (1,) * length, "versions": spans,
        }  # fmt: skip
        answers = (sample(asked.index, place, reward=reward, **columns) for place, reward in enumerate(rewards))
        return Group(asked, tuple(answers), version_admitted)


@dataclass
class Saved:
    """A checkpoint, and what counts up to it."""

    done: int = 0
    version: int = 0
    snapshot: str = field(default_factory=lambda: json.dumps(CheckedLedger().snapshot()))
    kept: tuple[Group, ...] = ()
    made: tuple[tuple[int, Rollout], ...] = ()


def life(schedule: Schedule, engines: Engines, saved: Saved, kill_after: float | None) -> CheckedLedger:
    """One process: from the checkpoint to its end, or until it is killed."""
    ledger = CheckedLedger.restore(json.loads(saved.snapshot), saved.kept)
    setup = given(
        engines, schedule.options(), batch_size=schedule.batch_size, num_rollout=schedule.steps, first_rollout_id=saved.done,
        weight_version=saved.version, ledger=ledger,
    )  # fmt: skip
    watch_limits(setup, schedule)
    engines.running, engines.version = 0, saved.version

    async def main() -> None:
        try:
            async with asyncio.timeout(kill_after):
                await loop(FullyAsyncRolloutFn(setup), setup, schedule, engines, saved)
        except TimeoutError:
            return

    run_virtual(main())
    return ledger


async def loop(fn: Any, setup: RolloutFnInput, schedule: Schedule, engines: Engines, saved: Saved) -> None:
    """Take, train, publish, sometimes evaluate, save."""
    rng, version, made = random.Random(schedule.seed), setup.weight_version, list(saved.made)
    for rollout_id in range(setup.first_rollout_id, setup.derived.num_rollout):
        rollout = await fn(rollout_id, version)
        made.append((version, rollout))
        await asyncio.sleep(schedule.train_seconds * rng.random())
        setup.ledger.mark_trained(rollout)
        published = (rollout_id + 1) % schedule.interval == 0
        if published:
            version += 1
            engines.version = version
            fn.published(version)
        if schedule.evaluates and rollout_id % 2:
            await fn.pause()
            issued = setup.ledger.issued
            await asyncio.sleep(rng.choice([0.1, 20.0]))
            assert setup.ledger.issued == issued, "nothing starts during an evaluation"
            fn.resume()
        if (rollout_id + 1) % schedule.save_interval == 0 or rollout_id + 1 == schedule.steps:
            saved.snapshot, saved.kept = json.dumps(setup.ledger.snapshot()), setup.ledger.kept()
            saved.done, saved.version, saved.made = rollout_id + 1, version + (not published), tuple(made)
    await fn.close()


def watch_limits(setup: RolloutFnInput, schedule: Schedule) -> None:
    """Capacity and concurrency hold whenever a group is admitted."""
    reserve, options = setup.ledger.reserve, schedule.options()
    admitted = (schedule.bound + 1) * schedule.interval * schedule.batch_size
    capacity = options.async_data_buffer_capacity_factor
    most = admitted if capacity is None else min(admitted, int(capacity * schedule.batch_size))

    def watched() -> int:
        index = reserve()
        counts = setup.ledger.counts()
        assert counts["ledger/in_flight"] + counts["ledger/buffered"] <= max(most, schedule.batch_size)
        if options.async_max_concurrent_samples is not None:
            assert counts["ledger/in_flight"] * 2 <= options.async_max_concurrent_samples
        return index

    setup.ledger.reserve = watched  # type: ignore[method-assign]


def check(schedule: Schedule, saved: Saved, ledger: CheckedLedger) -> None:
    """Every law, over the whole run."""
    made, bound = saved.made, schedule.bound
    assert [rollout.rollout_id for _, rollout in made] == list(range(schedule.steps))
    trained = [group.index for _, rollout in made for group in rollout.groups]
    assert len(trained) == len(set(trained)), "none is trained twice"
    for version, rollout in made:
        indices = [group.index for group in rollout.groups]
        assert len(indices) == schedule.batch_size and indices == sorted(indices)
        versions = [v for group in rollout.groups if (v := oldest_trained_version(group)) is not None]
        assert version - min(versions, default=version) <= bound, "a token beyond the bound is trained"
        if schedule.control != "mask":
            assert max(staleness(version, group) for group in rollout.groups) <= bound
            assert all(all(answer.loss_mask) for answer in rollout.samples), "nothing is masked"
        if schedule.control == "pace" and schedule.kills == 0:
            assert rollout.metrics["rollout/fully_async/sent_back"] == 0, "nothing is begun in vain"
    counts, dropped = ledger.counts(), ledger.dropped()
    assert counts["ledger/trained"] == len(trained)
    left = set(ledger._state)
    assert ledger.issued == len(trained) + sum(dropped.values()) + len(left), "each prompt once"
    assert not left & set(trained)
    if schedule.control != "filter":
        assert dropped["stale"] == 0, "no group is given up for its age"
        if schedule.kills == 0:
            assert not left, "nothing is sampled in vain"
    if not schedule.filters:
        assert dropped["dynamic_filter"] == 0


def check_against_sync(schedule: Schedule, saved: Saved) -> None:
    """S = 0 and U = 1: the batches of the synchronous loop, in its order."""
    engines, theirs = Engines(schedule), Saved()
    setup = given(engines, schedule.sync_options(), batch_size=schedule.batch_size, num_rollout=schedule.steps)
    run_virtual(loop(InferenceRolloutFn(setup), setup, schedule, engines, theirs))
    for (version, rollout), (other_version, other) in zip(saved.made, theirs.made, strict=True):
        assert version == other_version
        assert rollout.groups == tuple(replace(group) for group in other.groups)


def kill_times(schedule: Schedule) -> Iterator[float]:
    """Virtual seconds that each life lasts before the last."""
    rng = random.Random(f"{schedule.seed}/kill")
    yield from (rng.uniform(0.1, 30) for _ in range(schedule.kills))


@pytest.mark.parametrize("part", range(PARTS))
def test_laws_over_thousands_of_schedules(part: int) -> None:
    compared = 0
    for seed in range(part, NUM_SCHEDULES, PARTS):
        schedule, saved = Schedule(seed), Saved()
        engines = Engines(schedule)
        try:
            for seconds in kill_times(schedule):
                life(schedule, engines, saved, seconds)
            ledger = life(schedule, engines, saved, None)
            check(schedule, saved, ledger)
            if schedule.equals_sync:
                check_against_sync(schedule, saved)
                compared += 1
        except Exception as error:
            error.add_note(f"schedule {seed}: {schedule.options()!r}, batch {schedule.batch_size}, {schedule.steps} steps")
            raise
    assert compared >= 10, "some of them are compared with the synchronous loop"
