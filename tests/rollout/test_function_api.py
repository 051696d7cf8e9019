"""Rollouts made by a function: the ledger is kept for it, and what it returns is looked at."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from miles.config.options.rollout import SyncRollout
from miles.errors import RolloutError
from miles.rollout.build import rollout_function
from miles.rollout.contracts import RolloutFnInput
from miles.simulation.virtual_time import run_virtual
from miles.types import Group, Rollout

from ..builders import derived
from .simulated import SimulatedGenerator, given, group

pytestmark = pytest.mark.unit


async def half_of_what_it_takes(setup: RolloutFnInput, rollout_id: int, weight_version: int) -> list[Group]:
    prompts = [setup.source.reserve(setup.ledger) for _ in range(4)]
    made = await asyncio.gather(*(setup.generate_group(prompt, weight_version) for prompt in prompts))
    return list(made)[1::2]


def plain(setup: RolloutFnInput, rollout_id: int, weight_version: int) -> Sequence[Group]:
    return tuple(group(setup.source.reserve(setup.ledger).index, weight_version) for _ in range(2))


async def too_few(setup: RolloutFnInput, rollout_id: int, weight_version: int) -> list[Group]:
    return [group(setup.source.reserve(setup.ledger).index)]


async def not_its_own(setup: RolloutFnInput, rollout_id: int, weight_version: int) -> list[Group]:
    return [group(5), group(6)]


async def the_same_twice(setup: RolloutFnInput, rollout_id: int, weight_version: int) -> list[Group]:
    made = group(setup.source.reserve(setup.ledger).index)
    return [made, made]


async def nothing(setup: RolloutFnInput, rollout_id: int, weight_version: int) -> Any:
    setup.source.reserve(setup.ledger)


async def raises(setup: RolloutFnInput, rollout_id: int, weight_version: int) -> Any:
    setup.source.reserve(setup.ledger)
    raise ZeroDivisionError("oh")


def built(function: Any) -> tuple[Any, RolloutFnInput]:
    path = f"{__name__}:{function.__name__}"
    options = SyncRollout(rollout_api="function", rollout_function_path=path)
    setup = given(SimulatedGenerator(1), options, derived=derived(rollout_function_path=path))
    return rollout_function(setup), setup


async def rollouts(fn: Any, setup: RolloutFnInput, number: int) -> list[Rollout]:
    made = []
    for rollout_id in range(number):
        made.append(await fn(rollout_id, rollout_id))
        setup.ledger.mark_trained(made[-1])
        fn.published(rollout_id + 1)
        await fn.pause()
        fn.resume()
    await fn.close()
    return made


def test_what_it_returns_is_trained_and_the_rest_waits() -> None:
    fn, setup = built(half_of_what_it_takes)
    made = run_virtual(rollouts(fn, setup, 2))
    assert [[group.index for group in rollout.groups] for rollout in made] == [[1, 3], [2, 5]]
    assert "rollout/raw_reward" in made[0].metrics
    counts = setup.ledger.counts()
    assert (counts["ledger/trained"], counts["ledger/waiting"], counts["ledger/in_flight"]) == (4, 2, 0)


async def test_a_plain_function_runs_in_a_thread() -> None:
    fn, setup = built(plain)
    made = await rollouts(fn, setup, 2)
    assert [[group.index for group in rollout.groups] for rollout in made] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("function", [too_few, not_its_own, the_same_twice, nothing])
def test_what_is_no_batch_is_refused(function: Any) -> None:
    fn, setup = built(function)
    with pytest.raises(RolloutError, match="Return 2 groups, each of another prompt"):
        run_virtual(rollouts(fn, setup, 1))
    assert setup.ledger.counts()["ledger/in_flight"] == 0


def test_a_failure_is_the_functions_own() -> None:
    fn, setup = built(raises)
    with pytest.raises(RolloutError, match="the rollout function failed at rollout 0: ZeroDivisionError"):
        run_virtual(rollouts(fn, setup, 1))
    assert setup.ledger.counts()["ledger/waiting"] == 1
