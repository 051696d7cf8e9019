"""Who waits for whom while nothing is wrong, what is said about it, and a publish that never comes."""

import asyncio

import pytest

from miles.config.options.rollout import FullyAsync
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.fully_async import FullyAsyncRolloutFn
from miles.simulation.virtual_time import DeadlockError, run_virtual
from miles.types import Group, Prompt

from .simulated import SimulatedGenerator, given, group

pytestmark = pytest.mark.unit
QUIET = 2e9  # beyond the virtual loop's horizon, so that a deadlock is seen


def test_room_in_the_buffer_is_used_while_the_policy_trains() -> None:
    async def main(setup: RolloutFnInput) -> float:
        fn = FullyAsyncRolloutFn(setup)
        await fn(0, 0)
        await asyncio.sleep(0)
        in_flight = setup.ledger.counts()["ledger/in_flight"]
        await fn.close()
        return in_flight

    options = FullyAsync(max_weight_staleness=2, async_data_buffer_capacity_factor=1.0, no_progress_seconds=QUIET)
    assert run_virtual(main(given(SimulatedGenerator(1), options, batch_size=3))) == 3


def test_a_cancelled_call_loses_nothing_and_the_next_one_goes_on() -> None:
    async def main(setup: RolloutFnInput) -> list[int]:
        fn = FullyAsyncRolloutFn(setup)
        call = asyncio.ensure_future(fn(0, 0))
        await asyncio.sleep(0.001)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        rollout = await fn(0, 0)
        await fn.close()
        return [group.index for group in rollout.groups]

    setup = given(SimulatedGenerator(5), FullyAsync(max_weight_staleness=0, no_progress_seconds=QUIET))
    assert run_virtual(main(setup)) == [0, 1]


@pytest.mark.parametrize(
    ("paused", "text"), [(True, "production is paused; "), (False, "the policy waits for 2 groups for rollout 0; ")]
)
def test_it_says_who_waits_for_whom(paused: bool, text: str) -> None:
    lines: list[str] = []

    async def generate(asked: Prompt, version: int) -> Group:
        await asyncio.sleep(70)
        return group(asked.index, version)

    async def main(setup: RolloutFnInput) -> None:
        fn = FullyAsyncRolloutFn(setup)
        call = asyncio.ensure_future(fn(0, 0))
        await asyncio.sleep(0.001)
        if paused:
            await fn.pause()
        await call
        await fn.close()

    run_virtual(main(given(generate, FullyAsync(max_weight_staleness=0, no_progress_seconds=60), say=lines.append)))
    assert lines == [
        f"no progress for 60 s: {text}0 groups finished, 2 groups in flight, the oldest is group 0, for 60 s, since version 0, "
        "version 0 published"
    ]


@pytest.mark.parametrize(
    ("slow", "text"),
    [(None, "the engines wait for the policy; 2 groups finished, no group in flight"), (1, "waits for older groups in flight")],
)
def test_it_says_that_the_engines_wait_or_that_pacing_does(slow: int | None, text: str) -> None:
    lines: list[str] = []

    async def generate(asked: Prompt, version: int) -> Group:
        await asyncio.sleep(100 if asked.index == slow else 1)
        return group(asked.index, version)

    async def main(setup: RolloutFnInput) -> None:
        fn = FullyAsyncRolloutFn(setup)
        for rollout_id in range(2):
            setup.ledger.mark_trained(await fn(rollout_id, rollout_id))
            await asyncio.sleep(65 if slow is None and rollout_id == 0 else 1)
            fn.published(rollout_id + 1)
        await fn.close()

    batch_size = 2 if slow is None else 1
    options = FullyAsync(max_weight_staleness=1, no_progress_seconds=60)
    run_virtual(main(given(generate, options, batch_size=batch_size, say=lines.append)))
    assert len(lines) == 1
    assert text in lines[0]


def test_a_publish_that_never_comes_is_seen_as_a_deadlock_here() -> None:
    async def main(setup: RolloutFnInput) -> None:
        fn = FullyAsyncRolloutFn(setup)
        await fn(0, 0)
        await fn(1, 1)

    with pytest.raises(DeadlockError):
        run_virtual(main(given(SimulatedGenerator(1), FullyAsync(max_weight_staleness=0, no_progress_seconds=QUIET))))
