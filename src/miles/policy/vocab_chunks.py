"""Log-probs and entropy from chunks of the vocabulary, so that the full logits of long answers never exist.

    hidden [n, h] ──chunk of the head──► logits [n, chunk] ──► running maximum, sum, target ──► log-prob, entropy

The forward pass keeps the log of the normaliser; the backward pass makes each chunk's logits again.
"""

from typing import Any

import torch
from torch import Tensor


class _ChunkedScores(torch.autograd.Function):
    """Softmax of ``hidden @ weight.T / temperature`` at ``target``, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, temperature: float, size: int) -> tuple[Tensor, Tensor]:
        """[n] log-probs and [n] entropies."""
        precise = at_least_float32(hidden.dtype)
        top = hidden.new_full((len(hidden),), -torch.inf, dtype=precise)
        total, weighted, chosen = (hidden.new_zeros(len(hidden), dtype=precise) for _ in range(3))
        for start in range(0, len(weight), size):
            logits = (hidden @ weight[start : start + size].T).to(precise) / temperature
            new_top = torch.maximum(top, logits.max(dim=1).values)
            scale, mass = (top - new_top).exp(), (logits - new_top[:, None]).exp()
            total = total * scale + mass.sum(dim=1)
            weighted = weighted * scale + (mass * logits).sum(dim=1)
            chosen += _at_target(logits, target - start)
            top = new_top
        log_normaliser = top + total.log()
        entropy = log_normaliser - weighted / total
        ctx.save_for_backward(hidden, weight, target, log_normaliser, entropy)
        ctx.temperature, ctx.size = temperature, size
        return chosen - log_normaliser, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor | None, None, None, None]:
        """With p the softmax: d log p_t / dz = [t] − p, and dH / dz = −p · (log p + H)."""
        hidden, weight, target, log_normaliser, entropy = ctx.saved_tensors
        of_logprob, of_entropy = (gradient[:, None] for gradient in gradients)
        precise = of_logprob.dtype
        to_hidden = torch.zeros_like(hidden, dtype=precise)
        to_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        rows = torch.arange(len(hidden), device=hidden.device)
        for start in range(0, len(weight), ctx.size):
            part = weight[start : start + ctx.size]
            log_p = (hidden @ part.T).to(precise) / ctx.temperature - log_normaliser[:, None]
            to_logits = -log_p.exp() * (of_logprob + of_entropy * (log_p + entropy[:, None]))
            place = target - start
            inside = (place >= 0) & (place < len(part))
            to_logits[rows[inside], place[inside]] += of_logprob[inside, 0]
            to_logits = (to_logits / ctx.temperature).to(part.dtype)
            to_hidden += to_logits @ part
            if to_weight is not None:
                to_weight[start : start + ctx.size] = to_logits.T @ hidden
        return to_hidden.to(hidden.dtype), to_weight, None, None, None


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """What log-probs and losses are computed in after a forward pass in ``dtype``."""
    return torch.promote_types(dtype, torch.float32)


def _at_target(logits: Tensor, place: Tensor) -> Tensor:
    """[n]: the logit at ``place`` where the chunk holds it, else 0."""
    inside = (place >= 0) & (place < logits.shape[1])
    found = logits.gather(1, place.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
    return torch.where(inside, found, torch.zeros_like(found))


def chunked_scores(hidden: Tensor, weight: Tensor, target: Tensor, temperature: float, size: int) -> tuple[Tensor, Tensor]:
    """Log-probs of ``target`` and entropies, [n] each, under softmax of ``hidden @ weight.T / temperature``.

    The products are in the dtype of ``hidden``, everything after them in at least float32.

    Args:
        hidden: [n, hidden_size].
        weight: [vocabulary, hidden_size], the head.
        target: [n], int64.
        temperature: of the softmax.
        size: tokens of the vocabulary in a chunk.
    """
    logprobs, entropy = _ChunkedScores.apply(hidden, weight, target, temperature, size)  # type: ignore[no-untyped-call]
    return logprobs, entropy
