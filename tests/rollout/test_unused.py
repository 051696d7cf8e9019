"""Groups that fail: sampled again while their budget lasts, then dropped with a reason, in every schedule."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from miles.config.options.rollout import FullyAsync, SyncRollout
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.fully_async import FullyAsyncRolloutFn
from miles.rollout.inference import InferenceRolloutFn
from miles.rollout.ledger import DropReason
from miles.simulation.virtual_time import run_virtual
from miles.types import Group, Metrics, Prompt

from .simulated import given, group

pytestmark = pytest.mark.unit
QUIET = 2e9


class Flaky:
    """Group 1 times out, or gets no reward, at its first ``failures`` attempts."""

    def __init__(self, failures: int, how: str = "timeout") -> None:
        self.failures, self.how = failures, how
        self.attempts: Counter[int] = Counter()

    async def __call__(self, asked: Prompt, version: int) -> Group:
        await asyncio.sleep(1)
        self.attempts[asked.index] += 1
        fails = asked.index == 1 and self.attempts[1] <= self.failures
        if fails and self.how == "timeout":
            raise TimeoutError("group 1 took longer than 1 s")
        return group(asked.index, version, (None, None) if fails else (0.0, 1.0))


async def two_rollouts(setup: RolloutFnInput) -> tuple[list[int], Metrics]:
    kind = FullyAsyncRolloutFn if isinstance(setup.config.rollout, FullyAsync) else InferenceRolloutFn
    fn: Any = kind(setup)
    indices, first = [], {}
    for rollout_id in range(2):
        rollout = await fn(rollout_id, rollout_id)
        indices += [made.index for made in rollout.groups]
        first = first or rollout.metrics
        setup.ledger.mark_trained(rollout)
        fn.published(rollout_id + 1)
    await fn.close()
    return indices, first


def options(fully_async: bool, **more: Any) -> Any:
    if fully_async:
        return FullyAsync(max_weight_staleness=0, no_progress_seconds=QUIET, **more)
    return SyncRollout(no_progress_seconds=QUIET, **more)


@pytest.mark.parametrize("fully_async", [False, True])
@pytest.mark.parametrize("how", ["timeout", "reward"])
@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_group_that_recovers_is_trained(fully_async: bool, how: str, failures: int) -> None:
    flaky = Flaky(failures, how)
    setup = given(flaky, options(fully_async, max_group_retries=2), num_rollout=2)
    indices, first = run_virtual(two_rollouts(setup))
    assert indices == [0, 1, 2, 3]
    assert flaky.attempts[1] == failures + 1
    assert first["rollout/retried"] == failures
    assert setup.ledger.dropped() == dict.fromkeys(DropReason, 0)


@pytest.mark.parametrize("fully_async", [False, True])
@pytest.mark.parametrize(("budget", "how", "reason"), [
    (0, "timeout", DropReason.ABORTED),
    (0, "reward", DropReason.REWARD_FAILED),
    (2, "timeout", DropReason.RETRIES_EXHAUSTED),
    (2, "reward", DropReason.RETRIES_EXHAUSTED),
])  # fmt: skip
def test_a_group_that_never_works_is_dropped_with_a_reason(fully_async: bool, budget: int, how: str, reason: DropReason) -> None:
    flaky = Flaky(99, how)
    setup = given(flaky, options(fully_async, max_group_retries=budget), num_rollout=2)
    indices, _ = run_virtual(two_rollouts(setup))
    assert indices == [0, 2, 3, 4]
    assert flaky.attempts[1] == budget + 1
    assert setup.ledger.dropped() == dict.fromkeys(DropReason, 0) | {reason: 1}


def test_the_handler_may_drop_at_once() -> None:
    flaky = Flaky(1)
    setup = given(flaky, options(True, async_unused_samples_handler="drop"), num_rollout=2)
    indices, first = run_virtual(two_rollouts(setup))
    assert indices == [0, 2, 3, 4]
    assert (first["rollout/dropped/aborted"], first["rollout/retried"]) == (1, 0)
