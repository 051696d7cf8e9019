"""The standard rollout function: which groups a rollout holds, and what happens when one fails."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from miles.config.options.rollout import SyncRollout
from miles.errors import EngineError, RolloutError
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.inference import InferenceRolloutFn
from miles.simulation.virtual_time import run_virtual
from miles.types import Group, Prompt, Rollout

from .simulated import SimulatedGenerator, given, group

pytestmark = pytest.mark.unit
SPREAD = "miles.rollout.filters:has_reward_spread"


def rejects_everything(_: Group) -> bool:
    return False


def first_sample_only(groups: Sequence[Group]) -> list[list[bool]]:
    return [[True, False] for _ in groups]


async def rollouts(setup: RolloutFnInput, number: int) -> list[Rollout]:
    fn = InferenceRolloutFn(setup)
    made = []
    for rollout_id in range(number):
        made.append(await fn(rollout_id, rollout_id))
        setup.ledger.mark_trained(made[-1])
        fn.published(rollout_id + 1)
    return made


@for_all(st.integers(0, 10**6), st.integers(1, 5), st.booleans(), st.sampled_from([0.0, 0.2]))
@settings(max_examples=60, deadline=None)
def test_rollouts_are_the_accepted_groups_in_order(seed: int, batch_size: int, filters: bool, abort_share: float) -> None:
    """Whatever the completion times: no index is skipped, none comes twice, each is accepted or dropped."""
    options = SyncRollout(dynamic_sampling_filter_path=SPREAD if filters else None)
    setup = given(SimulatedGenerator(seed, abort_share), options, batch_size=batch_size)
    made = run_virtual(rollouts(setup, 4))
    indices = [group.index for rollout in made for group in rollout.groups]
    assert indices == sorted(set(indices))
    assert all(len(rollout.groups) == batch_size for rollout in made)
    counts = setup.ledger.counts()
    assert counts["ledger/issued"] == max(indices) + 1 == 4 * batch_size + sum(setup.ledger.dropped().values())
    if filters:
        assert all(index % 3 != 1 for index in indices)
    assert [group.version_admitted for rollout in made for group in rollout.groups] == [
        rollout.rollout_id for rollout in made for _ in rollout.groups
    ]


def test_all_groups_of_a_rollout_run_together() -> None:
    generator = SimulatedGenerator(1)
    run_virtual(rollouts(given(generator, SyncRollout(), batch_size=9), 2))
    assert generator.most_running == 9


@for_all(st.integers(0, 10**6), st.integers(1, 4), st.integers(0, 4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_over_sampling_uses_the_first_groups_and_loses_none(seed: int, batch_size: int, more: int, filters: bool) -> None:
    options = SyncRollout(over_sampling_batch_size=batch_size + more, dynamic_sampling_filter_path=SPREAD if filters else None)
    generator = SimulatedGenerator(seed)
    setup = given(generator, options, batch_size=batch_size)
    made = run_virtual(rollouts(setup, 5))
    batches = [[group.index for group in rollout.groups] for rollout in made]
    assert all(len(batch) == batch_size and batch == sorted(batch) for batch in batches)
    trained = [index for batch in batches for index in batch]
    assert len(trained) == len(set(trained))
    assert [group.version_admitted for rollout in made for group in rollout.groups] == sorted(list(range(5)) * batch_size)
    assert generator.most_running <= batch_size + more
    counts = setup.ledger.counts()
    assert counts["ledger/in_flight"] == counts["ledger/buffered"] == 0
    assert counts["ledger/waiting"] <= more
    assert setup.ledger.issued == len(trained) + sum(setup.ledger.dropped().values()) + counts["ledger/waiting"]


def test_over_sampling_does_not_wait_for_a_straggler() -> None:
    async def generate(asked: Prompt, version: int) -> Group:
        await asyncio.sleep(1e6 if asked.index == 0 else 1)
        return group(asked.index, version)

    setup = given(generate, SyncRollout(over_sampling_batch_size=3, no_progress_seconds=1e9))
    made = run_virtual(rollouts(setup, 2))
    assert [[group.index for group in rollout.groups] for rollout in made] == [[1, 2], [3, 4]]
    assert setup.ledger.counts()["ledger/waiting"] == 1


def test_a_failed_group_cancels_its_siblings_and_is_the_cause() -> None:
    cancelled = []

    async def generate(asked: Prompt, version: int) -> Group:
        if asked.index == 1:
            await asyncio.sleep(2)
            raise EngineError("engine 0: connection refused")
        try:
            await asyncio.sleep(1 if asked.index == 0 else 100)
        except asyncio.CancelledError:
            cancelled.append(asked.index)
            raise
        return group(asked.index, version)

    setup = given(generate, SyncRollout(), batch_size=3)
    with pytest.raises(RolloutError, match="rollout 0 failed: engine 0: connection refused") as caught:
        run_virtual(rollouts(setup, 1))
    assert isinstance(caught.value.__cause__, EngineError)
    assert cancelled == [2]
    assert setup.ledger.counts()["ledger/waiting"] == 3


def test_cancelling_a_call_sends_every_group_back() -> None:
    async def main(setup: RolloutFnInput) -> None:
        call = asyncio.ensure_future(InferenceRolloutFn(setup)(0, 0))
        await asyncio.sleep(0.5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    setup = given(SimulatedGenerator(3), SyncRollout(), batch_size=4)
    run_virtual(main(setup))
    assert setup.ledger.counts()["ledger/waiting"] == 4


def test_a_filter_that_rejects_everything_ends_the_run() -> None:
    options = SyncRollout(dynamic_sampling_filter_path=f"{__name__}:rejects_everything")
    with pytest.raises(RolloutError, match=r"128 groups were dropped \(dynamic_filter\) and none was accepted.*Loosen"):
        run_virtual(rollouts(given(SimulatedGenerator(1), options), 1))


def test_a_reward_that_never_works_ends_the_run_in_its_own_words() -> None:
    async def generate(asked: Prompt, version: int) -> Group:
        return group(asked.index, version, (None, None), metadata={"reward_error": "the reward raised KeyError('x')"})

    with pytest.raises(RolloutError, match=r"8 groups were dropped \(reward_failed\).*KeyError\('x'\)\. Mend the reward"):
        run_virtual(rollouts(given(generate, SyncRollout()), 1))


def test_pausing_holds_refills_back_and_lets_running_groups_go_on() -> None:
    async def main(setup: RolloutFnInput) -> list[float]:
        fn = InferenceRolloutFn(setup)
        call = asyncio.ensure_future(fn(0, 0))
        await asyncio.sleep(0.001)
        await fn.pause()
        await asyncio.sleep(1000)
        before = setup.ledger.counts()
        fn.resume()
        await call
        await fn.close()
        return [before["ledger/in_flight"], before["ledger/buffered"], setup.ledger.counts()["ledger/in_training"]]

    options = SyncRollout(dynamic_sampling_filter_path=SPREAD, no_progress_seconds=1e6)
    assert run_virtual(main(given(SimulatedGenerator(2), options, batch_size=3))) == [0, 2, 3]


def test_a_straggler_is_named_when_nothing_moves() -> None:
    lines: list[str] = []

    async def generate(asked: Prompt, version: int) -> Group:
        await asyncio.sleep(1 if asked.index == 0 else 200)
        return group(asked.index, version)

    run_virtual(rollouts(given(generate, SyncRollout(no_progress_seconds=50), say=lines.append), 1))
    assert lines == [
        "no progress for 50 s: the policy waits for the engines: 1 of 2 groups accepted, "
        "1 groups in flight, the oldest is group 1, for 51 s, since version 0",
        "no progress for 100 s: the policy waits for the engines: 1 of 2 groups accepted, "
        "1 groups in flight, the oldest is group 1, for 101 s, since version 0",
    ]


def test_the_sample_filter_takes_samples_out_of_the_loss() -> None:
    options = SyncRollout(rollout_sample_filter_path=f"{__name__}:first_sample_only")
    (rollout,) = run_virtual(rollouts(given(SimulatedGenerator(1), options), 1))
    assert [sample.loss_mask for sample in rollout.samples] == [(1, 1), (0, 0)] * 2
