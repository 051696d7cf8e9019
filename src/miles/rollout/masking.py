"""Tokens that are too old leave the loss; where in the answers they stood is measured.

Early tokens of long answers are the oldest, so masking by age is not even over an answer: the share is a metric by quarter.
"""

from collections.abc import Sequence
from dataclasses import replace

from miles.types import Group, Metrics, Sample, mean

QUARTERS = ("0-25", "25-50", "50-75", "75-100")


def without_old_tokens(group: Group, oldest: int) -> Group:
    """The group with loss mask 0 for every token of a version before ``oldest``; rewards and advantages keep the whole answer."""
    return replace(group, samples=tuple(mask_sample(sample, oldest) for sample in group.samples))


def mask_sample(sample: Sample, oldest: int) -> Sample:
    """The sample with loss mask 0 for every token of a version before ``oldest``; itself where there is none."""
    old = [span for span in sample.versions if span.version < oldest]
    if not old:
        return sample
    mask = list(sample.loss_mask)
    for span in old:
        mask[span.start : span.end] = [0] * (span.end - span.start)
    return replace(sample, loss_mask=tuple(mask))


def masked_metrics(groups: Sequence[Group], oldest: int) -> Metrics:
    """Share of response tokens older than ``oldest``, of all and by quarter of the answer, and of samples with none left.

    ``rollout/masked/share``, ``rollout/masked/share/0-25`` … ``75-100``, ``rollout/masked/whole_samples``.
    """
    flags = [flags_of(sample, oldest) for group in groups for sample in group.samples]
    tokens = [flag for row in flags for flag in row]
    quarters: list[list[bool]] = [[] for _ in QUARTERS]
    for row in flags:
        for place, flag in enumerate(row):
            quarters[4 * place // len(row)].append(flag)
    by_quarter = {f"rollout/masked/share/{name}": mean(part) for name, part in zip(QUARTERS, quarters, strict=True)}
    whole = mean([bool(row) and all(row) for row in flags])
    return {"rollout/masked/share": mean(tokens), "rollout/masked/whole_samples": whole} | by_quarter


def old_token_metrics(groups: Sequence[Group], version: int) -> Metrics:
    """``rollout/partial/old_tokens_share``: share of response tokens sampled before ``version``."""
    flags = [flag for group in groups for sample in group.samples for flag in flags_of(sample, version)]
    return {"rollout/partial/old_tokens_share": mean(flags)}


def flags_of(sample: Sample, oldest: int) -> list[bool]:
    """For every token whether its version is before ``oldest``."""
    return [span.version < oldest for span in sample.versions for _ in range(span.start, span.end)]


def has_trained_token(groups: Sequence[Group]) -> bool:
    """Whether any token is left in the loss."""
    return any(any(sample.loss_mask) for group in groups for sample in group.samples)


def oldest_trained_version(group: Group) -> int | None:
    """Version of the oldest token in the loss, None where none is."""
    versions = (
        span.version for sample in group.samples for span in sample.versions if any(sample.loss_mask[span.start : span.end])
    )
    return min(versions, default=None)
