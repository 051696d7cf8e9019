"""Advantages: what each answer is worth beside the other answers to its prompt.

Pure functions of tensors; one entry per sample.
"""

import torch
from torch import Tensor

STD_EPSILON = 1e-4


def grpo_advantages(rewards: Tensor, scored: Tensor, group_of: Tensor, *, divide_by_std: bool) -> Tensor:
    """Group-relative advantages: ``(r − mean) / (std + 1e-4)``, or ``r − mean``.

    Mean and standard deviation are those of the group's scored samples; the deviation is the unbiased one (n − 1), as in TRL
    1.16's ``GRPOTrainer``. Source: DeepSeekMath (arXiv 2402.03300, §4.1.2); without the division Dr. GRPO (arXiv 2503.20783).
    Exactly 0 for a sample without a reward, a group with one scored sample, and a group whose rewards are all equal.

    Args:
        rewards: [samples], floating; the value of an unscored sample is not read.
        scored: [samples], bool.
        group_of: [samples], int64, in 0 … groups − 1.
        divide_by_std: whether to divide by the deviation.

    Returns:
        [samples], the dtype of ``rewards``.
    """
    num_groups = int(group_of.max()) + 1 if group_of.numel() else 0
    known = torch.where(scored, rewards, torch.zeros_like(rewards))
    count = _group_sum(scored.to(rewards.dtype), group_of, num_groups)
    mean = _group_sum(known, group_of, num_groups) / count.clamp(min=1)
    centred = torch.where(scored & ~_all_equal(rewards, scored, group_of, num_groups)[group_of], known - mean[group_of], 0.0)
    if not divide_by_std:
        return centred
    variance = _group_sum(centred.square(), group_of, num_groups) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt()[group_of] + STD_EPSILON)


def _group_sum(values: Tensor, group_of: Tensor, num_groups: int) -> Tensor:
    """[groups]: sums of ``values`` [samples] by group."""
    return values.new_zeros(num_groups).index_add_(0, group_of, values)


def _all_equal(rewards: Tensor, scored: Tensor, group_of: Tensor, num_groups: int) -> Tensor:
    """[groups], bool: no two scored rewards differ. Compared exactly: a rounded mean would leave a tiny advantage."""
    top = rewards.new_full((num_groups,), -torch.inf)
    top.scatter_reduce_(0, group_of, torch.where(scored, rewards, -torch.inf), "amax")
    low = rewards.new_full((num_groups,), torch.inf)
    low.scatter_reduce_(0, group_of, torch.where(scored, rewards, torch.inf), "amin")
    return top <= low
