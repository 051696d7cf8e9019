"""One token per row: log-probabilities after temperature, then an inverse-CDF draw from a counter-based uniform.

The uniform of a row is a hash of (seed, position), so a draw depends on nothing but the row's own logits, seed and
position: not on the batch it is in, nor on what was drawn before it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"), constants as signed 64 bit.
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
_UNIT: float = 2.0**-52  # of 52 random bits in [0, 1)


@dataclass(frozen=True, slots=True)
class RowParams:
    """Sampling parameters of n rows, one tensor [n] each.

    temperature: float32, > 0 (1 for greedy rows).
    top_p: float32 in (0, 1].
    top_k: int64; 0 keeps all, 1 is greedy.
    seed: int64.
    """

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    seed: Tensor


def sample(logits: Tensor, params: RowParams, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token per row.

    Args:
        logits: [n, vocabulary], float32.
        params: of the n rows.
        positions: [n] int64, place of the new token in prompt plus answer.

    Returns:
        tokens [n] int64 and their log-probabilities [n] float32: after temperature, before top-p and top-k.
    """
    logprobs = torch.log_softmax(logits / params.temperature[:, None], dim=-1)
    weights = logprobs.exp()
    cut = ((params.top_p < 1) | (params.top_k > 1)).nonzero()[:, 0]
    if len(cut):
        weights[cut] = _truncated(weights[cut], params.top_p[cut], params.top_k[cut])
    tokens = _inverse_cdf(weights, uniform(params.seed, positions))
    tokens = torch.where(params.top_k == 1, logits.argmax(dim=-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    """[n] float64 in [0, 1), a function of (seed, position) alone; both [n] int64."""
    bits = _shift_right(_mix(_mix(seed) + position * _GOLDEN_GAMMA), 12)
    return bits.to(torch.float64) * _UNIT


def _mix(state: Tensor) -> Tensor:
    state = state + _GOLDEN_GAMMA
    state = (state ^ _shift_right(state, 30)) * _MIX_1
    state = (state ^ _shift_right(state, 27)) * _MIX_2
    return state ^ _shift_right(state, 31)


def _shift_right(state: Tensor, bits: int) -> Tensor:
    """Logical shift; torch shifts int64 arithmetically."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def _inverse_cdf(weights: Tensor, draws: Tensor) -> Tensor:
    """First token whose cumulative weight exceeds draw × total; a token of weight 0 is never taken."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    tokens = torch.searchsorted(cumulative, draws[:, None] * cumulative[:, -1:], right=True)[:, 0]
    return tokens.clamp_(max=weights.shape[-1] - 1)


def _truncated(probabilities: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Zero what top-k and top-p exclude, as SGLang's torch sampler does.

    Of the tokens in order of probability, keep the first ``top_k`` and those before which less than or exactly
    ``top_p`` of the whole distribution lies (so the most likely one always stays).
    """
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1, dtype=torch.float64) - ordered
    rank = torch.arange(ordered.shape[-1])
    excluded = (before > top_p[:, None]) | ((rank >= top_k[:, None]) & (top_k > 0)[:, None])
    return torch.zeros_like(probabilities).scatter_(1, order, ordered.masked_fill(excluded, 0.0))
