r"""Filters of your own: train on prompts that are neither solved nor hopeless, and leave truncated answers out of the loss.

    miles train --preset reverse --dynamic-sampling-filter-path middle_difficulty:keep \\
        --rollout-sample-filter-path middle_difficulty:select

A group that ``keep`` rejects is dropped and another prompt takes its place; ``select`` only takes samples out of the loss.
"""

from collections.abc import Sequence

from miles.types import Group, SampleStatus, mean

HOPELESS, SOLVED = 0.05, 0.95


def keep(group: Group) -> bool:
    """Whether the mean reward is between hopeless and solved."""
    return HOPELESS < mean([sample.reward or 0.0 for sample in group.samples]) < SOLVED


def select(groups: Sequence[Group]) -> list[list[bool]]:
    """For every group, for every sample: whether it ended before the length limit."""
    return [[sample.status is not SampleStatus.TRUNCATED for sample in group.samples] for group in groups]
