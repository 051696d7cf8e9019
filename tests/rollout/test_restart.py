"""Restarts on virtual time: killed at any moment and resumed from the last checkpoint, each prompt is trained once or dropped."""

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from miles.config.options.rollout import FullyAsync, OneStepOff
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.fully_async import FullyAsyncRolloutFn
from miles.rollout.group_file import read_groups, write_groups
from miles.rollout.inference import InferenceRolloutFn
from miles.rollout.masking import oldest_trained_version
from miles.simulation.virtual_time import run_virtual
from miles.types import Rollout

from .simulated import CheckedLedger, SimulatedGenerator, given, source

pytestmark = pytest.mark.unit
SPREAD = "miles.rollout.filters:has_reward_spread"
QUIET = 2e9
STEPS = 10


@dataclass
class Saved:
    """A checkpoint: what ``CheckpointSaver`` writes, and the rollouts that count from here on."""

    folder: Path
    done: int = 0
    version: int = 0
    ledger: dict[str, Any] = field(default_factory=lambda: CheckedLedger().snapshot())
    digest: str = ""
    made: list[tuple[int, int, Rollout]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.digest = write_groups(self.folder / "groups", [])

    def write(self, ledger: CheckedLedger, done: int, version: int, made: list[tuple[int, int, Rollout]]) -> None:
        self.ledger, self.digest = ledger.snapshot(), write_groups(self.folder / "groups", ledger.finished())
        self.done, self.version, self.made = done, version, list(made)

    def restore(self) -> CheckedLedger:
        return CheckedLedger.restore(self.ledger, read_groups(self.folder / "groups", self.digest, source()))


@dataclass(frozen=True)
class Life:
    """What a process does between its start and its end. kill_after: virtual seconds, None for a life that ends by itself."""

    control: str
    batch_size: int
    interval: int
    bound: int
    save_interval: int
    kill_after: float | None
    filters: bool
    handler: str
    abort_share: float
    seed: int

    def options(self) -> FullyAsync:
        return FullyAsync(
            update_weights_interval=self.interval,
            max_weight_staleness=self.bound,
            staleness_control=self.control,
            async_unused_samples_handler=self.handler,
            dynamic_sampling_filter_path=SPREAD if self.filters else None,
            no_progress_seconds=QUIET,
        )


LIVES = st.builds(
    Life,
    control=st.sampled_from(["pace", "mask", "filter"]),
    batch_size=st.integers(1, 4),
    interval=st.integers(1, 3),
    bound=st.integers(0, 3),
    save_interval=st.integers(1, 3),
    kill_after=st.floats(0.1, 40),
    filters=st.booleans(),
    handler=st.sampled_from(["retry", "drop"]),
    abort_share=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 10**6),
)


async def live(setup: RolloutFnInput, life: Life, saved: Saved) -> None:
    """The fully async loop with checkpoints, until it ends or is killed."""
    fn, rng = FullyAsyncRolloutFn(setup), random.Random(life.seed)
    version, made = setup.weight_version, list(saved.made)
    for rollout_id in range(setup.first_rollout_id, STEPS):
        rollout = await fn(rollout_id, version)
        made.append((version, life.bound, rollout))
        await asyncio.sleep(rng.expovariate(1))
        setup.ledger.mark_trained(rollout)
        published = (rollout_id + 1) % life.interval == 0
        if published:
            version += 1
            fn.published(version)
        if (rollout_id + 1) % life.save_interval == 0 or rollout_id + 1 == STEPS:
            saved.write(setup.ledger, rollout_id + 1, version + (not published), made)
    await fn.close()


def run_life(life: Life, saved: Saved) -> CheckedLedger:
    ledger = saved.restore()
    setup = given(
        SimulatedGenerator(life.seed, life.abort_share),
        life.options(),
        batch_size=life.batch_size,
        num_rollout=STEPS,
        first_rollout_id=saved.done,
        weight_version=saved.version,
        ledger=ledger,
    )

    async def main() -> None:
        try:
            async with asyncio.timeout(life.kill_after):
                await live(setup, life, saved)
        except TimeoutError:
            return

    run_virtual(main())
    return ledger


@for_all(st.lists(LIVES, max_size=4), LIVES)
@settings(max_examples=150, deadline=None)
def test_a_restart_at_any_moment_gives_each_prompt_exactly_once(
    tmp_path_factory: pytest.TempPathFactory, killed: list[Life], last: Life
) -> None:
    """Also when the batch size, the interval, the bound or the control is another one after the restart."""
    saved = Saved(tmp_path_factory.mktemp("saved"))
    for life in killed:
        run_life(life, saved)
    ledger = run_life(Life(**{**last.__dict__, "kill_after": None}), saved)

    assert [rollout.rollout_id for _, _, rollout in saved.made] == list(range(STEPS))
    trained = [group.index for _, _, rollout in saved.made for group in rollout.groups]
    assert len(trained) == len(set(trained)), "none is trained twice"
    counts = ledger.counts()
    assert counts["ledger/trained"] == len(trained)
    alive = counts["ledger/waiting"] + counts["ledger/in_flight"] + counts["ledger/buffered"] + counts["ledger/in_training"]
    assert ledger.issued == len(trained) + sum(ledger.dropped().values()) + alive
    settled = set(trained) | set(ledger._state)
    assert ledger.issued - len(settled) == sum(ledger.dropped().values()), "what is neither trained nor there was dropped"
    for version, bound, rollout in saved.made:
        versions = [v for group in rollout.groups if (v := oldest_trained_version(group)) is not None]
        assert version - min(versions, default=version) <= bound


@for_all(LIVES)
@settings(max_examples=60, deadline=None)
def test_what_was_finished_is_not_sampled_again(tmp_path_factory: pytest.TempPathFactory, life: Life) -> None:
    """On schedule and with the same options, every finished group of the checkpoint is trained from its saved samples."""
    same = Life(**{**life.__dict__, "control": "pace", "interval": 1, "filters": False, "abort_share": 0.0})
    saved = Saved(tmp_path_factory.mktemp("saved"))
    run_life(same, saved)
    kept = {group.index: group for group in saved.restore().finished()}
    run_life(Life(**{**same.__dict__, "kill_after": None}), saved)
    trained = {group.index: group for _, _, rollout in saved.made for group in rollout.groups}
    assert all(trained[index] == group for index, group in kept.items())


@for_all(st.integers(0, 10**6), st.integers(1, 4), st.floats(0, 12))
@settings(max_examples=60, deadline=None)
def test_one_step_off_goes_on_with_the_rollout_that_was_on_its_way(seed: int, batch_size: int, moment: float) -> None:
    """Accepted and handed-over groups of the upcoming rollout come back; the rest of it is sampled."""
    setup = given(SimulatedGenerator(seed), OneStepOff(no_progress_seconds=QUIET), batch_size=batch_size)

    async def first() -> tuple[dict[str, Any], tuple[Any, ...]]:
        upcoming = asyncio.ensure_future(InferenceRolloutFn(setup)(0, 0))
        await asyncio.sleep(moment)
        saved = setup.ledger.snapshot(), setup.ledger.finished()
        upcoming.cancel()
        await asyncio.gather(upcoming, return_exceptions=True)
        return saved

    async def second(again: RolloutFnInput) -> list[Rollout]:
        fn = InferenceRolloutFn(again)
        return [await fn(0, 0), await fn(1, 0)]

    snapshot, finished = run_virtual(first())
    generator = SimulatedGenerator(seed)
    again = given(
        generator, OneStepOff(no_progress_seconds=QUIET), batch_size=batch_size, ledger=CheckedLedger.restore(snapshot, finished)
    )
    rollouts = run_virtual(second(again))
    assert [group.index for rollout in rollouts for group in rollout.groups] == list(range(2 * batch_size))
    known = {group.index: group for group in finished}
    assert all(group == known.get(group.index, group) for rollout in rollouts for group in rollout.groups)
