"""Advantages: what each answer, or each of its tokens, is worth.

Pure functions of tensors. Beside its group, one entry per sample: ``grpo``, ``rloo``, ``centred``. Beside the whole rollout,
one entry per token: ``whitened``. In between: ``returns_of``, ``generalised_advantages``.
"""

import torch
from torch import Tensor

STD_EPSILON = 1e-4
WHITENING_EPSILON = 1e-8


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
    centred, count = _centred(rewards, scored, group_of)
    if not divide_by_std:
        return centred
    variance = _group_sum(centred.square(), group_of, len(count)) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt()[group_of] + STD_EPSILON)


def rloo_advantages(rewards: Tensor, scored: Tensor, group_of: Tensor) -> Tensor:
    """``r − mean of the others``, which is ``n / (n − 1) · (r − mean)`` over the n scored samples of a group.

    Source: RLOO (arXiv 2402.14740, eq. 8). Zero where ``grpo_advantages`` is; arguments and result as there.
    """
    centred, count = _centred(rewards, scored, group_of)
    return centred * (count / (count - 1).clamp(min=1))[group_of]


def returns_of(rewards: Tensor, token_rewards: Tensor, offsets: Tensor) -> Tensor:
    """What follows each token: its own and later token rewards, and the answer's reward; undiscounted.

    Source: REINFORCE++ (arXiv 2501.03262, eq. 4–5, with γ = 1), where a token's reward is ``−β·KL``.

    Args:
        rewards: [samples].
        token_rewards: [tokens].
        offsets: [samples + 1], where the tokens of each sample begin.

    Returns:
        [tokens].
    """
    lengths = offsets.diff()
    before = torch.cat((token_rewards.new_zeros(1), token_rewards.cumsum(0)))
    rest = before[offsets[1:]].repeat_interleave(lengths) - before[:-1]
    return rewards.repeat_interleave(lengths) + rest


def generalised_advantages(rewards: Tensor, values: Tensor, offsets: Tensor, gamma: float, lambd: float) -> Tensor:
    """``A_t = δ_t + γλ·A_{t+1}`` with ``δ_t = r_t + γ·V_{t+1} − V_t``; after an answer's last token V and A are 0.

    Source: GAE (Schulman et al. 2016, arXiv 1506.02438, eq. 11–12 and 16). ``A + V`` is what V is trained towards.

    Args:
        rewards: [tokens], of each token.
        values: [tokens], V of the text before the token.
        offsets: [samples + 1], where the tokens of each sample begin.
        gamma: discount.
        lambd: weight of later differences.

    Returns:
        [tokens], the dtype of ``values``.
    """
    lengths, ends = offsets.diff(), offsets[1:]
    made = torch.zeros_like(values)
    next_value, carried = values.new_zeros(len(lengths)), values.new_zeros(len(lengths))
    for back in range(int(lengths.max()) if len(lengths) else 0):
        alive = lengths > back
        at = (ends - 1 - back)[alive]
        delta = rewards[at] + gamma * next_value[alive] - values[at]
        carried[alive] = delta + gamma * lambd * carried[alive]
        next_value[alive], made[at] = values[at], carried[alive]
    return made


def whitened(values: Tensor, counted: Tensor) -> Tensor:
    """``(v − mean) / (std + 1e-8)`` with mean and population deviation of the counted tokens, 0 for the others.

    Source: REINFORCE++ (arXiv 2501.03262, eq. 6): the batch is the whole rollout. Exactly 0 where all counted are equal.

    Args:
        values: [tokens].
        counted: [tokens], bool.
    """
    chosen = values[counted]
    if not len(chosen) or bool(chosen.max() == chosen.min()):
        return torch.zeros_like(values)
    centred = torch.where(counted, values - chosen.mean(), 0.0)
    return centred / (chosen.std(correction=0) + WHITENING_EPSILON)


def overlong_penalties(lengths: Tensor, limit: int, buffer: int, factor: float) -> Tensor:
    """What is added to the reward of each answer for its length: 0 up to ``limit − buffer`` tokens, then down to ``−factor``.

    Source: DAPO (arXiv 2503.14476, eq. 13): ``((limit − buffer) − length) / buffer``, here times ``factor``.

    Args:
        lengths: [samples], tokens.
        limit: longest answer allowed, in tokens.
        buffer: tokens before the limit over which the penalty grows.
        factor: the penalty at the limit.
    """
    return ((limit - buffer - lengths) / buffer).clamp(-1.0, 0.0) * factor


def _centred(rewards: Tensor, scored: Tensor, group_of: Tensor) -> tuple[Tensor, Tensor]:
    """[samples], rewards minus their group's mean; and [groups], how many samples of each are scored."""
    num_groups = int(group_of.max()) + 1 if group_of.numel() else 0
    known = torch.where(scored, rewards, torch.zeros_like(rewards))
    count = _group_sum(scored.to(rewards.dtype), group_of, num_groups)
    mean = _group_sum(known, group_of, num_groups) / count.clamp(min=1)
    varied = scored & ~_all_equal(rewards, scored, group_of, num_groups)[group_of]
    return torch.where(varied, known - mean[group_of], 0.0), count


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
