"""From rewards to the advantage of every token, as the chosen estimator has it.

reward ─overlong penalty─► ─KL penalty─► beside the group, or return of each token ─whitening─► advantages
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from miles.config.commands import AnyConfig
from miles.config.options.algorithm import Estimator
from miles.policy.advantages import grpo_advantages, overlong_penalties, returns_of, rloo_advantages, whitened
from miles.policy.batch import TrainBatch


@dataclass(frozen=True, slots=True)
class AdvantageSpec:
    """Everything that is chosen about advantages.

    kl_coef: weight of ``log old − log reference`` in the reward.
    overlong: length limit, buffer and factor of the penalty; None for no penalty.
    """

    estimator: Estimator
    divide_by_std: bool
    normalize: bool
    kl_coef: float
    overlong: tuple[int, int, float] | None

    @classmethod
    def from_config(cls, config: AnyConfig) -> "AdvantageSpec":
        """The spec that the options ask for."""
        chosen, limit = config.algorithm, config.data.rollout_max_response_len
        buffer = chosen.overlong_buffer_len
        return cls(
            estimator=chosen.advantage_estimator,
            divide_by_std=chosen.grpo_std_normalization and chosen.advantage_estimator != "dr_grpo",
            normalize=chosen.normalize_advantages or chosen.advantage_estimator.startswith("reinforce"),
            kl_coef=chosen.kl_coef,
            overlong=None if buffer is None else (limit, buffer, chosen.overlong_penalty_factor),
        )


def token_advantages(batch: TrainBatch, spec: AdvantageSpec, kl: Tensor | None) -> Tensor:
    """[response tokens], float64: the advantage of each; 0 for every token of a sample without a reward.

    Where answers are compared with their group, the KL penalty of an answer is the sum over its trained tokens and is taken
    off its reward first; ``reinforce_plus_plus`` counts it token by token, in the returns.

    Args:
        batch: the rollout.
        spec: what is chosen.
        kl: [response tokens], ``log old − log reference``; read only with ``kl_coef``, on trained tokens.
    """
    trained, offsets = torch.tensor(batch.trained), torch.tensor(batch.response_offsets)
    scored, group_of = torch.tensor(batch.scored), torch.tensor(batch.group_of)
    lengths = offsets.diff()
    rewards = torch.tensor(batch.rewards)
    if spec.overlong is not None:
        rewards = rewards + overlong_penalties(lengths, *spec.overlong)
    penalty = torch.zeros(len(trained), dtype=torch.float64)
    if spec.kl_coef and kl is not None:
        penalty = torch.where(trained, spec.kl_coef * kl.double(), penalty)
    if spec.estimator == "reinforce_plus_plus":
        values = returns_of(rewards, -penalty, offsets)
    else:
        owner = torch.arange(len(lengths)).repeat_interleave(lengths)
        rewards = rewards.index_add(0, owner, -penalty)
        values = _beside_the_group(rewards, scored, group_of, spec)[owner]
    known = scored.repeat_interleave(lengths)
    return whitened(values, trained & known) if spec.normalize else torch.where(known, values, 0.0)


def _beside_the_group(rewards: Tensor, scored: Tensor, group_of: Tensor, spec: AdvantageSpec) -> Tensor:
    """[samples]: the advantage of each answer among those to its prompt."""
    if spec.estimator == "rloo":
        return rloo_advantages(rewards, scored, group_of)
    divide = spec.divide_by_std and not spec.estimator.startswith("reinforce")
    return grpo_advantages(rewards, scored, group_of, divide_by_std=divide)
