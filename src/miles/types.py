"""The nouns that the parts of miles exchange: prompt, sample, group, rollout, staleness.

Prompt ──engine──► Sample × n = Group ──ledger──► Rollout ──policy──► StepReport
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

Metrics = dict[str, float]


class SampleStatus(StrEnum):
    """How an answer ended."""

    COMPLETED = "completed"  # by an end token or a stop string
    TRUNCATED = "truncated"  # by the length limit
    ABORTED = "aborted"  # by us, with the tokens so far
    FAILED = "failed"  # the reward gave no number


class VersionSpan(NamedTuple):
    """Response tokens [start, end) were sampled under weight version ``version``."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question: its place in the order of issue, its tokens, and what the reward needs.

    index: position in the order of issue over all epochs, from 0; the group's identity.
    row: line of the prompt file, from 0.
    """

    index: int
    row: int
    epoch: int
    text: str
    token_ids: tuple[int, ...]
    label: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer.

    response_ids, logprobs, loss_mask: one entry per response token; log-probs are the engine's, after temperature.
    versions: spans that cover the response without gaps, in order.
    reward: None until scored.
    """

    group_index: int
    sample_index: int
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    loss_mask: tuple[int, ...]
    versions: tuple[VersionSpan, ...]
    status: SampleStatus
    text: str = ""
    reward: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def oldest_version(self) -> int | None:
        """Version of the oldest token, None for an empty answer."""
        return min((span.version for span in self.versions), default=None)


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one prompt.

    version_admitted: the published version when the group was (last) admitted; no token is older.
    """

    prompt: Prompt
    samples: tuple[Sample, ...]
    version_admitted: int

    @property
    def index(self) -> int:
        """The prompt's place in the order of issue."""
        return self.prompt.index

    @property
    def oldest_version(self) -> int:
        """Version of the oldest token; the version at admission where no token was sampled."""
        versions = [v for s in self.samples if (v := s.oldest_version) is not None]
        return min(versions, default=self.version_admitted)


@dataclass(frozen=True, slots=True)
class Rollout:
    """What one training step consumes: groups in index order, and what was measured while they were made."""

    rollout_id: int
    groups: tuple[Group, ...]
    metrics: Metrics = field(default_factory=dict)

    @property
    def samples(self) -> list[Sample]:
        """All samples, group by group."""
        return [sample for group in self.groups for sample in group.samples]


def staleness(policy_version: int, group: Group) -> int:
    """Policy version when training on the group starts − oldest version of any token in it.

    The one definition, used for the bound, the metric and the report.
    """
    return policy_version - group.oldest_version


@dataclass(frozen=True, slots=True)
class StepReport:
    """What the policy says about one training step (all optimiser steps of one rollout)."""

    metrics: Metrics
    num_optimizer_steps: int


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; 0 for no values, so that a metric is always a number."""
    return sum(values) / len(values) if values else 0.0
