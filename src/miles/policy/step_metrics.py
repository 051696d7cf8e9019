"""What one training step reports: sums over tokens, added up over micro-batches, ranks and optimiser steps, then divided once."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from miles.policy.losses import LossSpec, TokenLosses, ratio_of
from miles.policy.ranks import Ranks
from miles.types import Metrics, mean

NAMES = ("tokens", "kl", "clipped", "limited", "compared", "abs_diff", "ratio", "ratio_squared")


def token_sums(losses: TokenLosses, old: Tensor | None, sampled: Tensor) -> Tensor:
    """[8], float64, in the order of ``NAMES``: sums over the trained tokens of one forward pass.

    Args:
        losses: of the tokens.
        old: [tokens], log-probs at the rollout's first optimiser step; None where nobody computed them.
        sampled: [tokens], μ.
    """
    zero = losses.log_ratio.new_zeros(())
    count = zero + losses.log_ratio.numel()
    limited = zero if losses.limited is None else losses.limited.sum()
    sums = [count, losses.log_ratio.sum(), losses.clipped.sum(), limited]
    if old is None:
        sums += [zero] * 4
    else:
        ratio = ratio_of(old, sampled).double()
        sums += [count, (old - sampled).abs().sum(), ratio.sum(), ratio.square().sum()]
    return torch.stack([value.double() for value in sums])


@dataclass(slots=True)
class Tally:
    """What one training step adds up, over its optimiser steps.

    sums: ``token_sums`` of this rank. pg_losses, entropies, grad_norms, learning_rates: one per optimiser step.
    """

    sums: Tensor = field(default_factory=lambda: torch.zeros(len(NAMES), dtype=torch.float64))
    pg_losses: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)

    def add_tokens(self, sums: Tensor) -> None:
        """Add the ``token_sums`` of one micro-batch."""
        self.sums += sums.cpu()

    def add_step(self, pg_loss: float, entropy: float, grad_norm: float, learning_rate: float) -> None:
        """Add one optimiser step: its aggregated loss and entropy, its gradient norm before clipping, its learning rate."""
        self.pg_losses.append(pg_loss)
        self.entropies.append(entropy)
        self.grad_norms.append(grad_norm)
        self.learning_rates.append(learning_rate)

    def metrics(self, spec: LossSpec, ranks: Ranks) -> Metrics:
        """The step's metrics.

        Means over the optimiser steps: ``loss``, ``pg_loss``, ``entropy`` (aggregated as the loss is; only with an entropy
        bonus), ``grad_norm``; ``lr`` is the last step's. The others are means over the trained tokens that had a forward
        pass, and missing where none had. ``ppo_kl``: anchor − π, the anchor being the clip's denominator. ``pg_clipfrac``:
        share where the clip decided. ``train_rollout_logprob_abs_diff``: |old − μ|. ``ess``: (Σρ)² / (n·Σρ²) with ρ = old/μ,
        1 where sampler and policy agree. ``tis_mean``: ρ before its limits; ``tis_clipfrac``: share that the limits changed
        (only with such a correction).
        """
        pg_loss, entropy = mean(self.pg_losses), mean(self.entropies)
        row = {
            "train/loss": pg_loss - spec.entropy_coef * entropy,
            "train/pg_loss": pg_loss,
            "train/grad_norm": mean(self.grad_norms),
            "train/lr": self.learning_rates[-1],
        }
        if not spec.skips_zero_advantages:
            row["train/entropy"] = entropy
        return row | self._token_means(spec, ranks)

    def _token_means(self, spec: LossSpec, ranks: Ranks) -> Metrics:
        """The means over tokens that had a forward pass."""
        total = dict(zip(NAMES, ranks.sum(self.sums).tolist(), strict=True))
        row: Metrics = {}
        if tokens := total["tokens"]:
            row["train/ppo_kl"] = total["kl"] / tokens
            row["train/pg_clipfrac"] = total["clipped"] / tokens
        if compared := total["compared"]:
            row["train/train_rollout_logprob_abs_diff"] = total["abs_diff"] / compared
            row["train/ess"] = total["ratio"] ** 2 / (compared * total["ratio_squared"])
            if spec.correction in ("tis", "icepop"):
                row["train/tis_mean"] = total["ratio"] / compared
                row["train/tis_clipfrac"] = total["limited"] / compared
        return row
