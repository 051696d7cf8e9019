"""What becomes of a run when a part never works or the prompts end: a defined outcome each, in every schedule; none hangs."""

import asyncio
from typing import Any

import pytest

from miles.config.derived import count_rollouts
from miles.config.options.rollout import FullyAsync, OneStepOff, SyncRollout
from miles.errors import RolloutError
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.fully_async import FullyAsyncRolloutFn
from miles.rollout.inference import InferenceRolloutFn
from miles.simulation.virtual_time import run_virtual
from miles.types import Group, Prompt, Rollout

from .simulated import given, group, source

pytestmark = pytest.mark.unit
NOTHING = "miles.rollout.filters:has_reward_spread"
WAYS = ["sync", "one_step_off", "pace", "mask", "filter"]


def options(way: str, **more: Any) -> Any:
    kinds = {"sync": SyncRollout, "one_step_off": OneStepOff}
    if way in kinds:
        return kinds[way](no_progress_seconds=2e9, **more)
    return FullyAsync(staleness_control=way, max_weight_staleness=1, no_progress_seconds=2e9, **more)


async def rollouts(setup: RolloutFnInput) -> list[Rollout]:
    """The whole run, with a step of a second."""
    kind: Any = FullyAsyncRolloutFn if isinstance(setup.config.rollout, FullyAsync) else InferenceRolloutFn
    fn, made = kind(setup), []
    try:
        for rollout_id in range(setup.derived.num_rollout):
            made.append(await fn(rollout_id, rollout_id))
            await asyncio.sleep(1)
            setup.ledger.mark_trained(made[-1])
            fn.published(rollout_id + 1)
    finally:
        await fn.close()
    return made


def generating(rewards: tuple[float | None, ...]) -> Any:
    async def generate(asked: Prompt, version: int) -> Group:
        await asyncio.sleep(1 + asked.index % 3)
        return group(asked.index, version, rewards, metadata={"reward_error": "the reward raised KeyError('answer')"})

    return generate


@pytest.mark.parametrize("way", WAYS)
def test_a_filter_that_rejects_everything_ends_the_run(way: str) -> None:
    setup = given(generating((1.0, 1.0)), options(way, dynamic_sampling_filter_path=NOTHING))
    with pytest.raises(RolloutError, match=r"128 groups were dropped \(dynamic_filter\) and none was accepted.*Loosen"):
        run_virtual(rollouts(setup))
    assert setup.ledger.counts()["ledger/in_flight"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_reward_that_always_raises_ends_the_run_and_is_told_before(way: str) -> None:
    said: list[str] = []
    setup = given(generating((None, None)), options(way, max_group_retries=0), say=said.append)
    with pytest.raises(RolloutError, match=r"8 groups were dropped \(reward_failed\).*KeyError\('answer'\).*Mend the reward"):
        run_virtual(rollouts(setup))
    assert said[0] == "group 0 is dropped (reward_failed): the reward raised KeyError('answer')"
    assert [line.rsplit("; ")[-1] for line in said[1:]] == [f"{n} groups dropped (reward_failed) so far" for n in (2, 4, 8)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_prompts", [1, 2, 3, 7, 100])
def test_the_order_of_issue_goes_on_over_the_ends_of_epochs(way: str, num_prompts: int) -> None:
    """Fewer prompts than a batch holds, or an epoch that ends in the middle of one: the next epoch fills it."""

    async def generate(asked: Prompt, version: int) -> Group:
        await asyncio.sleep(1)
        return Group(asked, group(asked.index, version).samples, version)

    setup = given(generate, options(way), batch_size=4, num_rollout=4, source=source(num_prompts))
    made = [g.prompt for rollout in run_virtual(rollouts(setup)) for g in rollout.groups]
    assert sorted(p.index for p in made) == list(range(16))
    assert all((p.epoch, p.row) == divmod(p.index, num_prompts) for p in made)


@pytest.mark.parametrize("way", WAYS)
def test_the_last_epoch_is_trained_to_its_end_and_nothing_is_waited_for(way: str) -> None:
    """Two epochs of 7 prompts in batches of 4: four rollouts, the last filled with two prompts of a third epoch."""
    num_rollout = count_rollouts({"num_rollout": None, "num_epoch": 2, "rollout_batch_size": 4}, 7)
    setup = given(generating((0.0, 1.0)), options(way), batch_size=4, num_rollout=num_rollout, source=source(7))
    made = [g.index for rollout in run_virtual(rollouts(setup)) for g in rollout.groups]
    assert sorted(made) == list(range(16)), "2 × 7 and two more"
    assert setup.ledger.issued == 16


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_never_ends_costs_its_group_and_is_told(way: str) -> None:
    said: list[str] = []

    async def generate(asked: Prompt, version: int) -> Group:
        if asked.index == 1:
            await asyncio.sleep(600)
            raise TimeoutError("group 1 took longer than 600 s (--rollout-timeout-seconds)")
        await asyncio.sleep(1)
        return group(asked.index, version)

    setup = given(generate, options(way, max_group_retries=1), say=said.append, num_rollout=3)
    made = [g.index for rollout in run_virtual(rollouts(setup)) for g in rollout.groups]
    assert len(made) == 6 and 1 not in made
    assert setup.ledger.counts()["ledger/dropped/retries_exhausted"] <= 1
    assert said[0] == "group 1 is sampled again (aborted): group 1 took longer than 600 s (--rollout-timeout-seconds)"


@pytest.mark.parametrize("way", WAYS)
def test_some_answers_without_a_reward_are_told_and_the_rest_is_trained(way: str) -> None:
    from miles.types import SampleStatus

    said: list[str] = []

    async def generate(asked: Prompt, version: int) -> Group:
        await asyncio.sleep(1)
        made = group(asked.index, version)
        return made if asked.index != 2 else group(2, version, (None, 1.0), status=SampleStatus.FAILED)

    setup = given(generate, options(way), say=said.append, num_rollout=3)
    run_virtual(rollouts(setup))
    assert said == ["2 of 2 answers of group 2 got no reward and stay out of the loss: the reward gave no number"]
