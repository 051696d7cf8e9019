"""A rollout as flat columns: what travels to the trainer, in a handful of arrays instead of thousands of Python numbers.

Rollout ──TrainBatch.from_rollout──► columns ──Ray──► Trainer
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from miles.errors import NotFiniteError, PolicyError
from miles.types import Rollout, Sample

if TYPE_CHECKING:
    from torch import Tensor

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Shorts = NDArray[np.int32]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """The samples of one rollout, in the rollout's order.

    Per sample, [samples]: ``group_of`` (from 0), ``prompt_of`` (row of the distinct prompts), ``rewards`` (0 where unscored),
    ``scored``. Distinct prompts: ``prompt_ids``, cut at ``prompt_offsets`` [prompts + 1]; samples of a group usually share one.
    Per response token, cut at ``response_offsets`` [samples + 1]: ``response_ids``, ``logprobs`` (the engine's, after
    temperature), ``trained`` (the loss mask), ``versions`` (of the weights it was sampled under).
    """

    rollout_id: int
    policy_version: int
    group_of: Ints
    prompt_of: Ints
    rewards: Floats
    scored: Bools
    prompt_ids: Ints
    prompt_offsets: Ints
    response_ids: Ints
    response_offsets: Ints
    logprobs: Floats
    trained: Bools
    versions: Shorts

    @classmethod
    def from_rollout(cls, rollout: Rollout, policy_version: int) -> "TrainBatch":
        """The rollout's columns.

        Raises:
            PolicyError: a sample's columns differ in length, or its prompt is empty.
        """
        samples = rollout.samples
        for sample in samples:
            _check(sample, rollout.rollout_id)
        prompts: dict[tuple[int, tuple[int, ...]], int] = {}
        group_of = [number for number, group in enumerate(rollout.groups) for _ in group.samples]
        prompt_of = [prompts.setdefault((group, s.prompt_ids), len(prompts)) for group, s in zip(group_of, samples, strict=True)]
        distinct = [ids for _, ids in prompts]
        return cls(
            rollout_id=rollout.rollout_id,
            policy_version=policy_version,
            group_of=np.array(group_of, np.int64),
            prompt_of=np.array(prompt_of, np.int64),
            rewards=np.array([0.0 if s.reward is None else s.reward for s in samples], np.float64),
            scored=np.array([s.reward is not None for s in samples], np.bool_),
            prompt_ids=_flat(distinct, np.int64),
            prompt_offsets=_offsets(distinct),
            response_ids=_flat([s.response_ids for s in samples], np.int64),
            response_offsets=_offsets([s.response_ids for s in samples]),
            logprobs=_flat([s.logprobs for s in samples], np.float64),
            trained=_flat([s.loss_mask for s in samples], np.bool_),
            versions=_versions(samples),
        )

    @property
    def num_samples(self) -> int:
        """Samples of the rollout."""
        return len(self.group_of)

    @property
    def prompt_lengths(self) -> Ints:
        """[prompts], in tokens."""
        return np.diff(self.prompt_offsets)

    @property
    def trained_lengths(self) -> Ints:
        """[samples]: trained tokens."""
        running = np.concatenate(([0], np.cumsum(self.trained)))
        return np.diff(running[self.response_offsets])

    @property
    def lags(self) -> Ints:
        """[response tokens]: how many versions older than the policy the token's sampler was."""
        return np.maximum(self.policy_version - self.versions.astype(np.int64), 0)

    @property
    def num_lags(self) -> int:
        """One more than the largest of ``lags``."""
        return int(self.lags.max(initial=0)) + 1

    def any_of_sample(self, tokens: "Tensor") -> list[bool]:
        """[samples]: whether a condition, [response tokens], holds for any response token of the sample."""
        running = np.concatenate(([0], np.cumsum(tokens.numpy())))
        return (np.diff(running[self.response_offsets]) > 0).tolist()  # type: ignore[no-any-return]

    @property
    def fed_lengths(self) -> Ints:
        """[samples]: response tokens that a forward pass has to read, those before the last trained one."""
        start = self.response_offsets[:-1]
        position = np.where(self.trained, np.arange(len(self.trained)), -1)
        latest = np.maximum.accumulate(np.concatenate(([-1], position)))[self.response_offsets[1:]]
        return np.maximum(latest - start, 0)


def refuse_what_is_no_number(rollout: Rollout, batch: TrainBatch) -> None:
    """Raise ``NotFiniteError`` for the first sample of the rollout whose reward or log-probs are not finite."""
    bad = ~np.isfinite(batch.rewards)
    bad[np.searchsorted(batch.response_offsets, np.flatnonzero(~np.isfinite(batch.logprobs)), side="right") - 1] = True
    for sample in (sample for sample, is_bad in zip(rollout.samples, bad, strict=True) if is_bad):
        where = place_of(sample, rollout.rollout_id)
        if sample.reward is not None and not math.isfinite(sample.reward):
            raise NotFiniteError(
                f"{where}: the reward is {sample.reward}. A reward must be a finite number, or None where there is none."
            )
        raise NotFiniteError(
            f"{where}: a log-prob from the engine is not finite. See the engine's log; its weights may be damaged."
        )


def place_of(sample: Sample, rollout_id: int) -> str:
    """Which sample of the run it is, in words."""
    return f"rollout {rollout_id}, group {sample.group_index}, sample {sample.sample_index}"


def _check(sample: Sample, rollout_id: int) -> None:
    """Refuse a sample whose columns do not fit together."""
    where = place_of(sample, rollout_id)
    lengths = (len(sample.response_ids), len(sample.logprobs), len(sample.loss_mask))
    if len(set(lengths)) > 1:
        raise PolicyError(
            f"{where}: {lengths[0]} response tokens but {lengths[1]} log-probs and {lengths[2]} loss-mask entries. "
            "A generate function or filter must give one of each per token."
        )
    if [*(span.start for span in sample.versions), lengths[0]] != [0, *(span.end for span in sample.versions)]:
        raise PolicyError(
            f"{where}: the version spans {list(sample.versions)} do not cover the {lengths[0]} response tokens without gaps. "
            "A generate function must say under which weights every token was sampled."
        )
    if not sample.prompt_ids:
        raise PolicyError(f"{where}: the prompt has no tokens. Give every prompt at least one, such as the start token.")


def _versions(samples: Sequence[Sample]) -> Shorts:
    """The version of every response token."""
    spans = [span for sample in samples for span in sample.versions]
    numbers, lengths = [span.version for span in spans], [span.end - span.start for span in spans]
    return np.repeat(np.array(numbers, np.int32), lengths)


def _flat(columns: Sequence[Sequence[float]], dtype: type[Scalar]) -> NDArray[Scalar]:
    """All entries in one array."""
    return np.fromiter(chain.from_iterable(columns), dtype)


def _offsets(columns: Sequence[Sequence[float]]) -> Ints:
    """[columns + 1]: where each column starts in the flat array, and its end."""
    return np.concatenate(([0], np.cumsum([len(column) for column in columns]))).astype(np.int64)
