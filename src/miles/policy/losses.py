"""The clipped policy loss, its off-policy corrections and its aggregations, as pure functions of tensors.

With μ = log-prob at sampling, old = log-prob of the policy at the rollout's first optimiser step, π = current log-prob:

    none               clip(π/old)
    rollout-logprobs   clip(π/μ)
    tis                clip(π/old) × clamp(old/μ, low, high), the weight detached
    icepop             clip(π/old) × (old/μ inside [low, high], else 0), the weight detached

Everything works on the trained tokens of any part of the global batch; the normaliser comes from outside, so that the sum of
the parts does not depend on how the batch was cut over ranks and micro-batches.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from miles.config.commands import AnyConfig
from miles.errors import PolicyError

Correction = Literal["none", "rollout-logprobs", "tis", "icepop"]
Aggregation = Literal["token-mean", "sequence-mean", "sequence-sum-over-constant"]

LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, slots=True)
class LossSpec:
    """Everything that is chosen about the loss.

    eps_low, eps_high: the ratio is clipped to [1 − eps_low, 1 + eps_high].
    weight_low, weight_high: limits of the importance weight of ``tis`` and ``icepop``.
    constant: what ``sequence-sum-over-constant`` divides a sample's sum by, in tokens.
    """

    correction: Correction
    aggregation: Aggregation
    eps_low: float
    eps_high: float
    weight_low: float
    weight_high: float
    entropy_coef: float
    constant: float

    @classmethod
    def from_config(cls, config: AnyConfig) -> "LossSpec":
        """The spec that the options ask for; the constant is ``rollout_max_response_len``, as in Dr. GRPO.

        Raises:
            PolicyError: the correction is one that this loss does not have.
        """
        chosen = config.algorithm
        if chosen.off_policy_correction == "decoupled":
            raise PolicyError(
                "off_policy_correction = decoupled is not available yet. Choose tis, icepop, rollout-logprobs or none."
            )
        return cls(
            correction=chosen.off_policy_correction,
            aggregation=chosen.loss_aggregation,
            eps_low=chosen.eps_clip,
            eps_high=chosen.eps_clip if chosen.eps_clip_high is None else chosen.eps_clip_high,
            weight_low=chosen.tis_clip_low,
            weight_high=chosen.tis_clip,
            entropy_coef=chosen.entropy_coef,
            constant=float(config.data.rollout_max_response_len),
        )

    @property
    def reads_old(self) -> bool:
        """Whether the loss reads the log-probs of the rollout's first optimiser step."""
        return self.correction != "rollout-logprobs"

    @property
    def skips_zero_advantages(self) -> bool:
        """Whether a sample of advantage 0 adds nothing to the gradient."""
        return self.entropy_coef == 0.0


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """Per trained token, [tokens]: the loss before aggregation, and what the metrics count.

    clipped: whether the clip decided the loss (the token then has no gradient).
    log_ratio: anchor − π with the anchor of the clip (old, or μ), detached.
    limited: whether the limits changed the importance weight; None where the correction has none.
    """

    loss: Tensor
    clipped: Tensor
    log_ratio: Tensor
    limited: Tensor | None


def ratio_of(numerator: Tensor, denominator: Tensor) -> Tensor:
    """exp(numerator − denominator) of log-probs, the difference limited to ±20.

    A ratio beyond e²⁰ means nothing any more, but its infinity would turn the gradient of a clipped token into NaN.
    """
    return (numerator - denominator).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def clipped_surrogate(ratio: Tensor, advantages: Tensor, eps_low: float, eps_high: float) -> tuple[Tensor, Tensor]:
    """``−min(ratio·A, clip(ratio, 1 − eps_low, 1 + eps_high)·A)`` and whether the clip decided.

    Source: PPO (arXiv 1707.06347, eq. 7), with two ranges as in DAPO (arXiv 2503.14476). All [tokens].
    """
    free = -ratio * advantages
    bound = -ratio.clamp(1 - eps_low, 1 + eps_high) * advantages
    return torch.maximum(free, bound), (bound > free).detach()


def importance_weight(old: Tensor, sampled: Tensor, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """The detached weight of ``tis`` or ``icepop`` for old/μ, and whether the limits changed it. All [tokens].

    Sources: truncated importance sampling, Ionides 2008 (§2), here with a lower limit too; IcePop, Ling team 2025
    (arXiv 2510.18855): no loss outside the band.
    """
    ratio = ratio_of(old, sampled).detach()
    outside = (ratio < spec.weight_low) | (ratio > spec.weight_high)
    limited = ratio.clamp(spec.weight_low, spec.weight_high)
    return (torch.where(outside, torch.zeros_like(ratio), ratio) if spec.correction == "icepop" else limited), outside


def token_losses(current: Tensor, old: Tensor, sampled: Tensor, advantages: Tensor, spec: LossSpec) -> TokenLosses:
    """The policy loss of each token, before aggregation and without the entropy bonus.

    Args:
        current: [tokens], log-probs under the weights being trained; carries the gradient.
        old: [tokens], log-probs at the rollout's first optimiser step; not read by ``rollout-logprobs``.
        sampled: [tokens], μ, the engine's log-probs.
        advantages: [tokens].
        spec: what is chosen about the loss.
    """
    anchor = (old if spec.reads_old else sampled).detach()
    loss, clipped = clipped_surrogate(ratio_of(current, anchor), advantages, spec.eps_low, spec.eps_high)
    limited = None
    if spec.correction in ("tis", "icepop"):
        weight, limited = importance_weight(old, sampled, spec)
        loss = loss * weight
    return TokenLosses(loss, clipped, anchor - current.detach(), limited)


def normaliser(num_tokens: int, num_samples: int, spec: LossSpec) -> float:
    """What the summed loss of the global batch is divided by, over all ranks and micro-batches; at least 1.

    num_tokens, num_samples: trained tokens and samples of the whole global batch, those of advantage 0 and empty ones included.
    ``token-mean`` is DAPO's, ``sequence-mean`` GRPO's, ``sequence-sum-over-constant`` Dr. GRPO's aggregation.
    """
    if spec.aggregation == "token-mean":
        return float(max(num_tokens, 1))
    return max(num_samples, 1) * (spec.constant if spec.aggregation == "sequence-sum-over-constant" else 1.0)


def token_weights(tokens_of_sample: Tensor, spec: LossSpec, divisor: float) -> Tensor:
    """[tokens]: the factor of each token's loss; the aggregated loss is their dot product.

    Args:
        tokens_of_sample: [tokens], floating; how many trained tokens the token's own sample has.
        spec: what is chosen about the loss.
        divisor: ``normaliser`` of the global batch.
    """
    if spec.aggregation == "sequence-mean":
        return 1.0 / (tokens_of_sample * divisor)
    return torch.full_like(tokens_of_sample, 1.0 / divisor)
