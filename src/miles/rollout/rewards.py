"""Rewards: a number for every sample, or a counted failure; nothing a reward does can stop the run.

    exact                 1.0 iff the answer ended by itself and equals the label
    your async function   on the driver's event loop, cancelled at the time limit
    your plain function   in a worker process, killed at the time limit (``reward_workers``)

Your function is ``reward(sample: Sample, prompt: Prompt)``, with ``--group-rm`` ``reward(samples: list[Sample], prompt)``; it
returns a number, or a mapping that holds the number under ``--reward-key`` (with ``--group-rm`` a list of them, one per sample).
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Protocol

from miles.errors import RewardError
from miles.rollout.filters import out_of_loss
from miles.types import Prompt, Sample, SampleStatus


class Judge(Protocol):
    """Calls the user's function."""

    async def __call__(self, what: Sample | list[Sample], prompt: Prompt) -> Any:
        """What it returned.

        Raises:
            RewardError: it raised or took too long; nothing else comes out.
        """
        ...

    async def close(self) -> None:
        """End what was started."""
        ...


class AsyncJudge:
    """An async function, on the running event loop; it must await rather than block."""

    def __init__(self, function: Callable[[Any, Prompt], Awaitable[Any]], timeout_seconds: float) -> None:
        self._function, self._timeout_seconds = function, timeout_seconds

    async def __call__(self, what: Sample | list[Sample], prompt: Prompt) -> Any:
        """What the function returned."""
        try:
            async with asyncio.timeout(self._timeout_seconds) as limit:
                return await self._function(what, prompt)
        except Exception as error:
            if limit.expired():
                raise RewardError(
                    f"the reward took longer than {self._timeout_seconds:g} s (--reward-timeout-seconds)"
                ) from error
            raise RewardError(f"the reward raised {error!r}") from error

    async def close(self) -> None:
        """Nothing was started."""


class Rewards(Protocol):
    """Scores the samples of one prompt."""

    async def score(self, prompt: Prompt, samples: Sequence[Sample]) -> tuple[Sample, ...]:
        """The samples with their rewards; those without a number have status FAILED, no reward and no place in the loss."""
        ...

    async def close(self) -> None:
        """End what was started."""
        ...


class ExactReward:
    """1.0 iff the answer ended by itself and is, without surrounding blanks, the label."""

    async def score(self, prompt: Prompt, samples: Sequence[Sample]) -> tuple[Sample, ...]:
        """The samples with their rewards."""
        return tuple(replace(sample, reward=exact(sample, prompt)) for sample in samples)

    async def close(self) -> None:
        """Nothing was started."""


class CustomReward:
    """Your function, called through a judge that holds it to its time limit."""

    def __init__(self, judge: Judge, *, reward_key: str | None = None, per_group: bool = False) -> None:
        self._judge, self._reward_key, self._per_group = judge, reward_key, per_group

    async def score(self, prompt: Prompt, samples: Sequence[Sample]) -> tuple[Sample, ...]:
        """The samples with their rewards."""
        if self._per_group:
            return await self._score_group(prompt, list(samples))
        return tuple(await asyncio.gather(*(self._score_sample(prompt, sample) for sample in samples)))

    async def close(self) -> None:
        """End what the judge started."""
        await self._judge.close()

    async def _score_sample(self, prompt: Prompt, sample: Sample) -> Sample:
        try:
            result = await self._judge(sample, prompt)
        except RewardError as error:
            return failed(sample, str(error))
        return scored_or_failed(sample, result, self._reward_key)

    async def _score_group(self, prompt: Prompt, samples: list[Sample]) -> tuple[Sample, ...]:
        try:
            results = as_list(await self._judge(samples, prompt), len(samples))
        except RewardError as error:
            return tuple(failed(sample, str(error)) for sample in samples)
        return tuple(scored_or_failed(sample, result, self._reward_key) for sample, result in zip(samples, results, strict=True))


def exact(sample: Sample, prompt: Prompt) -> float:
    """1.0 iff the answer ended by itself and is the label."""
    return float(sample.status is SampleStatus.COMPLETED and sample.text.strip() == str(prompt.label))


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives an awaitable."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def scored_or_failed(sample: Sample, result: Any, reward_key: str | None) -> Sample:
    """The sample with the number in a reward's result, or without one where there is none."""
    try:
        return scored(sample, result, reward_key)
    except RewardError as error:
        return failed(sample, str(error))


def scored(sample: Sample, result: Any, reward_key: str | None) -> Sample:
    """The sample with the number in a reward's result; a mapping is kept whole in its metadata.

    Raises:
        RewardError: the result holds no finite number where it should.
    """
    metadata = sample.metadata
    value = result
    if isinstance(result, Mapping):
        if reward_key is None:
            raise RewardError(f"the reward returned a mapping with keys {sorted(map(str, result))}. Name one with --reward-key")
        if reward_key not in result:
            raise RewardError(f'the reward returned no "{reward_key}" (--reward-key), only {sorted(map(str, result))}')
        value, metadata = result[reward_key], {**metadata, "reward": dict(result)}
    elif reward_key is not None:
        raise RewardError(f'the reward returned {str(result)[:80]!r}, not a mapping with "{reward_key}" (--reward-key)')
    if not isinstance(value, Real) or not is_finite(value):
        raise RewardError(f"the reward returned {str(value)[:80]!r} ({type(value).__name__}), not a finite number")
    return replace(sample, reward=float(value), metadata=metadata)


def is_finite(value: Real) -> bool:
    """Whether a float can hold the number."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def failed(sample: Sample, message: str) -> Sample:
    """The sample without a reward; what went wrong is in its metadata under ``reward_error``."""
    metadata = {**sample.metadata, "reward_error": message}
    return replace(out_of_loss(sample), status=SampleStatus.FAILED, reward=None, metadata=metadata)


def as_list(results: Any, length: int) -> list[Any]:
    """A group reward's results, one per sample.

    Raises:
        RewardError: it is no list of that length.
    """
    if not isinstance(results, Sequence) or isinstance(results, str) or len(results) != length:
        raise RewardError(f"the group reward returned {str(results)[:80]!r}, not a list of {length} results (--group-rm)")
    return list(results)
