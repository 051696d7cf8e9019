"""Policy losses, their off-policy corrections and their aggregations, as pure functions of tensors.

With μ = log-prob at sampling, old = log-prob of the policy at the rollout's first optimiser step, π = current log-prob:

    none               clip(π/old)
    rollout-logprobs   clip(π/μ)
    tis                clip(π/old) × clamp(old/μ, low, high), the weight detached
    icepop             clip(π/old) × (old/μ inside [low, high], else 0), the weight detached
    decoupled          as tis, with old between μ and π by the age of the token's version (``interpolated_old``), or recomputed

Everything works on the trained tokens of any part of the global batch; the normaliser comes from outside, so that the sum of
the parts does not depend on how the batch was cut over ranks and micro-batches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from miles.errors import PolicyError
from miles.policy.kl import kl_terms
from miles.policy.loss_spec import LossSpec

LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, slots=True)
class TokenColumns:
    """What a loss reads of each trained token, [tokens] each.

    current: log-probs under the weights being trained; carries the gradient.
    old: log-probs at the rollout's first optimiser step; not read by ``rollout-logprobs``.
    sampled: μ, the engine's log-probs.
    advantages: of the token.
    sample_of: int64, the token's sample in the batch; all trained tokens of a sample are together.
    num_tokens: trained tokens of the token's own sample, floating.
    reference: log-probs of the reference model, or None.
    """

    current: Tensor
    old: Tensor
    sampled: Tensor
    advantages: Tensor
    sample_of: Tensor
    num_tokens: Tensor
    reference: Tensor | None = None


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """Per trained token, [tokens]: the loss before aggregation, and what the metrics count.

    clipped: whether the clip decided the loss, or for ``cispo`` the weight.
    log_ratio: anchor − π with the anchor of the clip (old, or μ), detached.
    limited: whether the limits changed the importance weight; None where the correction has none.
    kl: the KL term, not weighted by its coefficient; None where the loss has none.
    """

    loss: Tensor
    clipped: Tensor
    log_ratio: Tensor
    limited: Tensor | None
    kl: Tensor | None = None


def ratio_of(numerator: Tensor, denominator: Tensor) -> Tensor:
    """exp(numerator − denominator) of log-probs, the difference limited to ±20.

    A ratio beyond e²⁰ means nothing any more, but its infinity would turn the gradient of a clipped token into NaN.
    """
    return (numerator - denominator).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def clipped_surrogate(ratio: Tensor, advantages: Tensor, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """``−min(ratio·A, clip(ratio, 1 − eps_low, 1 + eps_high)·A)`` and whether the clip decided.

    With ``eps_dual`` c the loss of a negative advantage is at most ``−c·A``. Sources: PPO (arXiv 1707.06347, eq. 7), with two
    ranges as in DAPO (arXiv 2503.14476); dual clip (arXiv 1912.09729, eq. 5). All [tokens].
    """
    free = -ratio * advantages
    bound = -ratio.clamp(1 - spec.eps_low, 1 + spec.eps_high) * advantages
    loss, clipped = torch.maximum(free, bound), bound > free
    if spec.eps_dual is not None:
        ceiling = torch.where(advantages < 0, -spec.eps_dual * advantages, torch.inf)
        loss, clipped = torch.minimum(loss, ceiling), clipped | (loss > ceiling)
    return loss, clipped.detach()


def sequence_ratio(columns: TokenColumns, anchor: Tensor) -> Tensor:
    """``exp(mean over the sample's tokens of π − anchor)`` at every token, its gradient that of the token alone.

    Source: GSPO (arXiv 2507.18071, eq. 7 and 13–14): ``sg[s] · π / sg[π]``, whose sum over tokens divided by their number has
    the gradient of ``s`` itself.
    """
    difference = columns.current - anchor
    total = difference.new_zeros(int(columns.sample_of.max()) + 1 if len(difference) else 0)
    total = total.index_add(0, columns.sample_of, difference.detach())
    mean = total[columns.sample_of] / columns.num_tokens
    return ratio_of(mean + columns.current - columns.current.detach(), torch.zeros_like(mean))


def clipped_weight_surrogate(columns: TokenColumns, anchor: Tensor, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """``−sg[clip(π/anchor)] · A · log π`` and whether the clip changed the weight: every token keeps a gradient.

    Source: CISPO in MiniMax-M1 (arXiv 2506.13585, eq. 4–5).
    """
    ratio = ratio_of(columns.current.detach(), anchor)
    weight = ratio.clamp(1 - spec.eps_low, 1 + spec.eps_high)
    return -weight * columns.advantages * columns.current, weight != ratio


def clipped_value_loss(values: Tensor, before: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """``max((V − R)², (V_old + clamp(V − V_old, ±clip) − R)²) / 2`` and whether the clip decided. All [tokens].

    Source: the value loss of PPO's implementation, as written down by Engstrom et al. 2020 (arXiv 2005.12729, §3, 1).

    Args:
        values: V, carries the gradient.
        before: V_old, before the rollout's first step.
        returns: R.
        clip: in units of the reward.
    """
    free = (values - returns).square()
    bound = (before + (values - before).clamp(-clip, clip) - returns).square()
    return torch.maximum(free, bound) / 2, (bound > free).detach()


def importance_weight(old: Tensor, sampled: Tensor, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """The detached weight of ``tis`` or ``icepop`` for old/μ, and whether the limits changed it. All [tokens].

    Sources: truncated importance sampling, Ionides 2008 (§2), here with a lower limit too; IcePop, Ling team 2025
    (arXiv 2510.18855): no loss outside the band.
    """
    ratio = ratio_of(old, sampled).detach()
    outside = (ratio < spec.weight_low) | (ratio > spec.weight_high)
    limited = ratio.clamp(spec.weight_low, spec.weight_high)
    return (torch.where(outside, torch.zeros_like(ratio), ratio) if spec.correction == "icepop" else limited), outside


def interpolated_old(current: Tensor, sampled: Tensor, age: Tensor, progress: float) -> Tensor:
    """Old log-probs without a forward pass: on the line from μ to π, by the versions that lie between.

    A token sampled ``age`` versions before the rollout's first optimiser step, of which the policy is ``progress`` versions
    past, has ``old = μ + (π − μ) · age / (age + progress)``; at the first step old is π. Source: decoupled PPO
    (arXiv 2110.00641) as used by AReaL (arXiv 2505.24298, §5.2), its proximal policy interpolated in log space.

    Args:
        current: [tokens], π, detached.
        sampled: [tokens], μ.
        age: [tokens], in weight versions, 0 or more.
        progress: in weight versions, 0 or more.
    """
    share = torch.ones_like(age) if progress == 0.0 else age / (age + progress)
    return torch.lerp(sampled, current, share)


def token_losses(columns: TokenColumns, spec: LossSpec) -> TokenLosses:
    """The policy loss of each token, before aggregation and without KL and entropy terms."""
    current = columns.current
    anchor = (columns.old if spec.reads_old else columns.sampled).detach()
    if spec.custom is not None:
        loss, clipped = custom_loss(columns, spec.custom), torch.zeros_like(current, dtype=torch.bool)
    elif spec.surrogate == "cispo":
        loss, clipped = clipped_weight_surrogate(columns, anchor, spec)
    else:
        ratio = sequence_ratio(columns, anchor) if spec.surrogate == "gspo" else ratio_of(current, anchor)
        loss, clipped = clipped_surrogate(ratio, columns.advantages, spec)
    limited = None
    if spec.weighs:
        weight, limited = importance_weight(columns.old, columns.sampled, spec)
        loss = loss * weight
    kl = None
    if spec.kl_kind is not None and columns.reference is not None:
        kl = kl_terms(current, columns.reference, spec.kl_kind)
        kl = kl * ratio_of(current, anchor) if spec.kl_unbiased else kl
    return TokenLosses(loss, clipped, anchor - current.detach(), limited, kl)


def answer_loss(columns: TokenColumns) -> Tensor:
    """−log π of each token: supervised learning, whatever the advantage."""
    return -columns.current


def custom_loss(columns: TokenColumns, function: Callable[..., Any]) -> Tensor:
    """What the user's function says of each token.

    Raises:
        PolicyError: it is not one number for each token.
    """
    loss = function(columns)
    if not isinstance(loss, Tensor) or loss.shape != columns.current.shape:
        given = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"type {type(loss).__name__}"
        raise PolicyError(
            f"custom_loss_function_path gave something of {given} for {len(columns.current)} tokens. "
            "Return a tensor with one loss for each token; aggregation and correction are applied to it."
        )
    return loss


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
