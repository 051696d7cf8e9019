"""Rewards: numbers, and every way not to give one; a hanging plain function is killed and replaced."""

import asyncio
import math
import os
import subprocess
import sys
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from miles.config.options.reward import RewardOptions
from miles.errors import ConfigError, RewardError
from miles.rollout.build import build_rewards
from miles.rollout.reward_worker import pack
from miles.rollout.reward_workers import RewardWorkers
from miles.rollout.rewards import AsyncJudge, CustomReward, ExactReward, is_async, scored
from miles.simulation.virtual_time import run_virtual
from miles.types import Prompt, Sample, SampleStatus

from .simulated import prompt, sample

pytestmark = pytest.mark.unit


def plain(scored_sample: Sample, asked: Prompt) -> Any:
    """Behaves as the answer's text says; prints, which must not disturb."""
    print("a word on standard output")
    match scored_sample.text:
        case "hang":
            time.sleep(3600)
        case "exit":
            os._exit(3)
        case "raise":
            raise ValueError("odd answer")
        case "unpicklable":
            return lambda: None
        case "pid":
            return os.getpid()
    return float(scored_sample.text == asked.label)


async def polite(scored_sample: Sample, asked: Prompt) -> Any:
    if scored_sample.text == "hang":
        await asyncio.sleep(3600)
    if scored_sample.text == "raise":
        raise KeyError("odd answer")
    return {"score": len(scored_sample.text), "style": 0.5}


def per_group(samples: list[Sample], asked: Prompt) -> Any:
    return [float(place) for place, _ in enumerate(samples)]


class AsyncObject:
    async def __call__(self, scored_sample: Sample, asked: Prompt) -> float:
        return 1.0


def texts(*answers: str) -> list[Sample]:
    return [sample(0, place, text=text, reward=None) for place, text in enumerate(answers)]


@pytest.mark.parametrize(
    ("changes", "label", "reward"),
    [
        ({"text": " ba\n"}, "ba", 1.0),
        ({"text": "ab"}, "ba", 0.0),
        ({"text": "ba", "status": SampleStatus.TRUNCATED}, "ba", 0.0),
        ({"text": "7"}, 7, 1.0),
        ({"text": ""}, "", 1.0),
    ],
)
async def test_exact(changes: dict[str, Any], label: Any, reward: float) -> None:
    (one,) = await ExactReward().score(prompt(label=label), [sample(reward=None, **changes)])
    assert one.reward == reward
    assert one.status is changes.get("status", SampleStatus.COMPLETED)


@pytest.mark.parametrize("value", [1, 0.5, True, np.float32(0.5), np.int64(2), Fraction(1, 2)])
def test_finite_numbers_of_any_kind_count(value: Any) -> None:
    reward = scored(sample(), value, None).reward
    assert reward == value
    assert type(reward) is float


@pytest.mark.parametrize(
    ("result", "key", "words"),
    [
        (math.nan, None, "'nan' (float), not a finite number"),
        (-math.inf, None, "not a finite number"),
        (10**400, None, "not a finite number"),
        ("1.0", None, "'1.0' (str), not a finite number"),
        (None, None, "NoneType"),
        ({"score": 1.0}, None, "Name one with --reward-key"),
        ({"score": 1.0}, "style", """no "style" (--reward-key), only ['score']"""),
        (1.0, "style", "not a mapping with"),
        ({"style": "good"}, "style", "'good' (str)"),
    ],
)
def test_anything_else_is_no_reward(result: Any, key: str | None, words: str) -> None:
    with pytest.raises(RewardError) as caught:
        scored(sample(), result, key)
    assert words in str(caught.value)


def check_failed(one: Sample, words: str) -> None:
    assert (one.status, one.reward, one.loss_mask) == (SampleStatus.FAILED, None, (0, 0))
    assert words in one.metadata["reward_error"]


def test_an_async_reward_fails_sample_by_sample() -> None:
    judge = AsyncJudge(polite, 5)
    good, hung, raised = run_virtual(CustomReward(judge, reward_key="score").score(prompt(), texts("ba", "hang", "raise")))
    assert (good.reward, good.metadata["reward"]) == (2.0, {"score": 2, "style": 0.5})
    check_failed(hung, "took longer than 5 s (--reward-timeout-seconds)")
    check_failed(raised, "the reward raised KeyError('odd answer')")


def test_a_cancelled_score_is_cancelled_not_failed() -> None:
    async def main() -> None:
        task = asyncio.ensure_future(CustomReward(AsyncJudge(polite, 50)).score(prompt(), texts("hang")))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main())


@pytest.mark.parametrize("result", [[1.0], "ab", None, 3])
async def test_a_group_reward_gives_one_result_per_sample(result: Any) -> None:
    async def judge(samples: list[Sample], asked: Prompt) -> Any:
        return result

    for one in await CustomReward(AsyncJudge(judge, 5), per_group=True).score(prompt(), texts("a", "b")):
        check_failed(one, "not a list of 2 results (--group-rm)")


async def test_one_bad_result_of_a_group_reward_fails_one_sample() -> None:
    async def judge(samples: list[Sample], asked: Prompt) -> Any:
        return [math.nan, 0.5]

    bad, good = await CustomReward(AsyncJudge(judge, 5), per_group=True).score(prompt(), texts("a", "b"))
    check_failed(bad, "not a finite number")
    assert good.reward == 0.5


def test_what_is_async() -> None:
    assert is_async(polite)
    assert is_async(AsyncObject())
    assert not is_async(plain)


@pytest.mark.timeout(60)
async def test_a_hanging_plain_reward_is_killed_and_replaced() -> None:
    options = RewardOptions(custom_rm_path=f"{__name__}:plain", reward_timeout_seconds=1.0)
    rewards = build_rewards(options)
    (before,) = await rewards.score(prompt(), texts("pid"))
    began = time.monotonic()
    hung, good = await rewards.score(prompt(), texts("hang", "ba"))
    assert time.monotonic() - began < 30
    check_failed(hung, "took longer than 1 s and was killed (--reward-timeout-seconds)")
    assert good.reward == 1.0
    with pytest.raises(ProcessLookupError):
        os.kill(int(before.reward or 0), 0)
    (after,) = await rewards.score(prompt(), texts("pid"))
    assert after.reward not in (before.reward, os.getpid())
    await rewards.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(after.reward or 0), 0)


@pytest.mark.timeout(60)
async def test_whatever_else_a_plain_reward_does_is_one_failed_sample() -> None:
    rewards = CustomReward(RewardWorkers(f"{__name__}:plain", 1, 30.0))
    raised, odd, gone, good = await rewards.score(prompt(), texts("raise", "unpicklable", "exit", "ba"))
    await rewards.close()
    check_failed(raised, "the reward raised ValueError('odd answer')")
    check_failed(odd, "the reward raised")
    check_failed(gone, "ended in the middle of a call")
    assert good.reward == 1.0


@pytest.mark.timeout(60)
async def test_a_plain_group_reward_and_a_cancelled_call() -> None:
    rewards = build_rewards(RewardOptions(custom_rm_path=f"{__name__}:per_group", group_rm=True))
    assert [one.reward for one in await rewards.score(prompt(), texts("a", "b", "c"))] == [0.0, 1.0, 2.0]
    await rewards.close()
    hanging = CustomReward(RewardWorkers(f"{__name__}:plain", 1, 60.0))
    call = asyncio.ensure_future(hanging.score(prompt(), texts("hang")))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await hanging.close()


@pytest.mark.timeout(60)
def test_a_process_ends_with_its_driver_even_in_the_middle_of_a_call() -> None:
    command = [sys.executable, "-m", "miles.rollout.reward_worker", f"{__name__}:plain"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as worker:
        assert worker.stdin is not None
        worker.stdin.write(pack((sample(text="hang"), prompt())))
        worker.stdin.close()
        assert worker.wait(timeout=50) == 0


@pytest.mark.timeout(60)
async def test_a_function_that_cannot_be_loaded_in_the_process_fails_the_sample() -> None:
    (one,) = await CustomReward(RewardWorkers("no_such_module_here:f", 1, 5.0)).score(prompt(), texts("a"))
    check_failed(one, "ended while it loaded the function")


def test_a_run_without_a_reward_is_refused() -> None:
    with pytest.raises(ConfigError, match="Pass --rm-type, or your own"):
        build_rewards(RewardOptions())
