"""What a failed group and a closed producer do: the waiting call fails at once, and no group is lost."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from miles.config.options.rollout import FullyAsync
from miles.errors import EngineError, RolloutError
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.fully_async import FullyAsyncRolloutFn
from miles.simulation.virtual_time import run_virtual
from miles.types import Group, Prompt

from .simulated import SimulatedGenerator, given, group

pytestmark = pytest.mark.unit
QUIET = 2e9  # beyond the virtual loop's horizon, so that a deadlock is seen


def failing_after(seconds: float) -> Any:
    async def generate(asked: Prompt, version: int) -> Group:
        await asyncio.sleep(seconds if asked.index == 1 else 500)
        if asked.index == 1:
            raise EngineError("engine 0 stopped answering")
        return group(asked.index, version)

    return generate


def test_a_failed_group_fails_the_waiting_call_at_once() -> None:
    async def main(setup: RolloutFnInput) -> float:
        fn = FullyAsyncRolloutFn(setup)
        with pytest.raises(RolloutError, match="rollout 0 failed, production has ended: engine 0 stopped") as caught:
            await fn(0, 0)
        assert isinstance(caught.value.__cause__, EngineError)
        with pytest.raises(RolloutError, match="production has ended"):
            await fn(0, 0)
        await fn.close()
        return asyncio.get_running_loop().time()

    setup = given(failing_after(3), FullyAsync(no_progress_seconds=QUIET))
    assert run_virtual(main(setup)) == pytest.approx(3)
    assert setup.ledger.counts()["ledger/waiting"] == setup.ledger.issued


def test_a_group_admitted_in_the_very_moment_of_a_failure_goes_back_too() -> None:
    """Its task is cancelled before its first step, so that none of its own code runs."""

    async def generate(asked: Prompt, version: int) -> Group:
        await asyncio.sleep(1)
        if asked.index == 1:
            raise EngineError("lost")
        return group(asked.index, version)

    async def main(setup: RolloutFnInput) -> Mapping[str, float]:
        fn = FullyAsyncRolloutFn(setup)
        with pytest.raises(RolloutError, match="lost"):
            await fn(0, 0)
        await fn.close()
        return setup.ledger.counts()

    counts = run_virtual(main(given(generate, FullyAsync(async_max_concurrent_samples=4, no_progress_seconds=QUIET))))
    assert counts["ledger/issued"] == 3
    assert (counts["ledger/in_flight"], counts["ledger/buffered"], counts["ledger/waiting"]) == (0, 1, 2)


def test_a_failure_between_calls_fails_the_next_one_even_if_a_batch_is_there() -> None:
    async def generate(asked: Prompt, version: int) -> Group:
        await asyncio.sleep(1 if asked.index < 4 else 20)
        if asked.index == 4:
            raise EngineError("lost")
        return group(asked.index, version)

    async def main(setup: RolloutFnInput) -> None:
        fn = FullyAsyncRolloutFn(setup)
        await fn(0, 0)
        await asyncio.sleep(100)
        with pytest.raises(RolloutError, match="lost"):
            await fn(1, 1)
        await fn.close()

    run_virtual(main(given(generate, FullyAsync(no_progress_seconds=QUIET))))


def test_closing_sends_flights_back_and_keeps_finished_groups_buffered() -> None:
    async def generate(asked: Prompt, version: int) -> Group:
        await asyncio.sleep(1 if asked.index < 3 else 1e6)
        return group(asked.index, version)

    async def main(setup: RolloutFnInput) -> Mapping[str, float]:
        fn = FullyAsyncRolloutFn(setup)
        await fn(0, 0)
        await asyncio.sleep(5)
        await fn.close()
        with pytest.raises(RolloutError, match="closed"):
            await fn(1, 1)
        return setup.ledger.counts()

    counts = run_virtual(main(given(generate, FullyAsync(max_weight_staleness=1, no_progress_seconds=QUIET))))
    assert (counts["ledger/in_training"], counts["ledger/buffered"], counts["ledger/in_flight"]) == (2, 1, 0)
    assert counts["ledger/waiting"] == 1
    assert counts["ledger/issued"] == 4


@pytest.mark.parametrize("num_turns", range(6))
def test_closing_at_any_turn_of_the_loop_leaves_nothing_in_flight(num_turns: int) -> None:
    async def main(setup: RolloutFnInput) -> Mapping[str, float]:
        fn = FullyAsyncRolloutFn(setup)
        call = asyncio.ensure_future(fn(0, 0))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        await fn.close()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        return setup.ledger.counts()

    counts = run_virtual(main(given(SimulatedGenerator(1), FullyAsync(no_progress_seconds=QUIET))))
    assert counts["ledger/in_flight"] == 0
    assert counts["ledger/waiting"] == counts["ledger/issued"]
