"""From rewards to the advantage of every token, as the chosen estimator has it.

reward ─overlong penalty─► ─KL penalty─► beside the group, or return of each token, or beside values ─whitening─► advantages
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from miles.config.commands import AnyConfig
from miles.config.options.algorithm import Estimator
from miles.policy.advantages import (
    generalised_advantages,
    grpo_advantages,
    overlong_penalties,
    returns_of,
    rloo_advantages,
    whitened,
)
from miles.policy.batch import TrainBatch


@dataclass(frozen=True, slots=True)
class AdvantageSpec:
    """Everything that is chosen about advantages.

    kl_coef: weight of ``log old − log reference`` in the reward.
    gamma, lambd: of the generalised advantage estimate; read by ``ppo`` alone.
    overlong: length limit, buffer and factor of the penalty; None for no penalty.
    """

    estimator: Estimator
    divide_by_std: bool
    normalize: bool
    kl_coef: float
    overlong: tuple[int, int, float] | None
    gamma: float = 1.0
    lambd: float = 1.0

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
            gamma=config.critic.gamma,
            lambd=config.critic.lambd,
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
    rewards, penalty = _rewards_and_penalty(batch, spec, kl)
    if spec.estimator == "reinforce_plus_plus":
        values = returns_of(rewards, -penalty, offsets)
    else:
        owner = torch.arange(len(lengths)).repeat_interleave(lengths)
        rewards = rewards.index_add(0, owner, -penalty)
        values = _beside_the_group(rewards, scored, group_of, spec)[owner]
    known = scored.repeat_interleave(lengths)
    return whitened(values, trained & known) if spec.normalize else torch.where(known, values, 0.0)


def beside_values(batch: TrainBatch, spec: AdvantageSpec, kl: Tensor | None, values: Tensor) -> tuple[Tensor, Tensor]:
    """Advantages and returns under a critic, [response tokens] each, float64; 0 for tokens that are not trained or not scored.

    The reward of an answer counts at its last trained token, the KL penalty at each; tokens that are not trained do not
    exist for the estimate, as they were not the policy's to choose.

    Args:
        batch: the rollout.
        spec: what is chosen.
        kl: as in ``token_advantages``.
        values: [response tokens], of the text before each token; read on trained tokens.
    """
    known = torch.tensor(batch.trained & np.repeat(batch.scored, np.diff(batch.response_offsets)))
    rewards, penalty = _rewards_and_penalty(batch, spec, kl)
    counts = torch.tensor(batch.trained_lengths * batch.scored)
    offsets = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    of_token = -penalty[known]
    of_token[offsets[1:][counts > 0] - 1] += rewards[counts > 0]
    made = generalised_advantages(of_token, values.double()[known], offsets, spec.gamma, spec.lambd)
    advantages, returns = (torch.zeros(len(known), dtype=torch.float64) for _ in range(2))
    advantages[known], returns[known] = made, made + values.double()[known]
    return whitened(advantages, known) if spec.normalize else advantages, returns


def _rewards_and_penalty(batch: TrainBatch, spec: AdvantageSpec, kl: Tensor | None) -> tuple[Tensor, Tensor]:
    """[samples], rewards with their overlong penalty; [response tokens], KL penalty of each trained token, float64."""
    rewards, trained = torch.tensor(batch.rewards), torch.tensor(batch.trained)
    if spec.overlong is not None:
        rewards = rewards + overlong_penalties(torch.tensor(batch.response_offsets).diff(), *spec.overlong)
    penalty = torch.zeros(len(trained), dtype=torch.float64)
    if spec.kl_coef and kl is not None:
        penalty = torch.where(trained, spec.kl_coef * kl.double(), penalty)
    return rewards, penalty


def _beside_the_group(rewards: Tensor, scored: Tensor, group_of: Tensor, spec: AdvantageSpec) -> Tensor:
    """[samples]: the advantage of each answer among those to its prompt."""
    if spec.estimator == "rloo":
        return rloo_advantages(rewards, scored, group_of)
    divide = spec.divide_by_std and not spec.estimator.startswith("reinforce")
    return grpo_advantages(rewards, scored, group_of, divide_by_std=divide)
