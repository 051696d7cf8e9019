"""Filters: which finished groups are worth training on, and which of their samples count in the loss.

A dynamic filter is ``keep(group: Group) -> bool``; a rejected group is dropped and refilled by the next prompt.
A sample filter is ``select(groups: Sequence[Group]) -> Sequence[Sequence[bool]]``: for every group, one flag per sample,
False takes the sample out of the loss.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from miles.errors import RolloutError
from miles.types import Group, Sample

DynamicFilter = Callable[[Group], bool]
SampleFilter = Callable[[Sequence[Group]], Sequence[Sequence[bool]]]


def has_reward_spread(group: Group) -> bool:
    """Keep a group whose samples got different rewards: only such a group moves the policy under GRPO."""
    return len({sample.reward for sample in group.samples if sample.reward is not None}) > 1


def keeps(dynamic_filter: DynamicFilter, group: Group) -> bool:
    """The filter's word on a group.

    Raises:
        RolloutError: it raised, or returned something other than True or False.
    """
    try:
        kept: Any = dynamic_filter(group)
    except Exception as error:
        raise RolloutError(
            f"the dynamic filter failed on group {group.index}: {error!r} (--dynamic-sampling-filter-path)"
        ) from error
    if not isinstance(kept, bool):
        raise RolloutError(
            f"the dynamic filter returned {kept!r} for group {group.index}. Return True or False (--dynamic-sampling-filter-path)"
        )
    return kept


def mask_samples(sample_filter: SampleFilter, groups: Sequence[Group]) -> tuple[Group, ...]:
    """The groups, with loss mask 0 for every token of the samples that the filter takes out.

    Raises:
        RolloutError: the filter raised, or did not return one True or False per sample.
    """
    try:
        flags: Any = [list(row) for row in sample_filter(groups)]
    except Exception as error:
        raise RolloutError(f"the sample filter failed: {error!r} (--rollout-sample-filter-path)") from error
    wanted = [len(group.samples) for group in groups]
    if [len(row) for row in flags] != wanted or not all(isinstance(flag, bool) for row in flags for flag in row):
        raise RolloutError(
            f"the sample filter must return one True or False per sample, {len(groups)} rows of {wanted[:1]} and so on, "
            f"but returned {str(flags)[:200]} (--rollout-sample-filter-path)"
        )
    return tuple(masked(group, row) for group, row in zip(groups, flags, strict=True))


def masked(group: Group, flags: Sequence[bool]) -> Group:
    """The group without the samples whose flag is False."""
    samples = (sample if flag else out_of_loss(sample) for sample, flag in zip(group.samples, flags, strict=True))
    return replace(group, samples=tuple(samples))


def out_of_loss(sample: Sample) -> Sample:
    """The sample with loss mask 0 for every token."""
    return replace(sample, loss_mask=(0,) * len(sample.loss_mask))
