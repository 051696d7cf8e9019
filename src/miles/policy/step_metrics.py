"""What one training step reports: sums over tokens, added up over micro-batches, ranks and optimiser steps, then divided once."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from miles.policy.loss_spec import LossSpec
from miles.policy.losses import TokenColumns, TokenLosses, ratio_of
from miles.policy.ranks import Ranks
from miles.types import Metrics, mean

NAMES = ("tokens", "kl", "clipped", "limited", "compared", "abs_diff", "ratio", "ratio_squared", "sampler_kl")


def token_sums(losses: TokenLosses, columns: TokenColumns, lag: Tensor, num_lags: int, *, compared: bool) -> Tensor:
    """[num_lags, 9], float64, columns in the order of ``NAMES``: sums over the trained tokens of one forward pass, by staleness.

    Args:
        losses: of the tokens.
        columns: what they were made from.
        lag: [tokens], int64, the token's staleness, below ``num_lags``.
        num_lags: rows of the result.
        compared: whether old log-probs are known.
    """
    one = torch.ones_like(losses.log_ratio)
    zero = torch.zeros_like(one)
    rows = [one, losses.log_ratio, losses.clipped, zero if losses.limited is None else losses.limited]
    if compared:
        ratio = ratio_of(columns.old, columns.sampled).double()
        difference = columns.old - columns.sampled
        rows += [one, difference.abs(), ratio, ratio.square(), ratio - 1 - difference]
    else:
        rows += [zero] * 5
    table = torch.stack([row.detach().double() for row in rows], dim=1)
    return table.new_zeros(num_lags, len(NAMES)).index_add_(0, lag, table)


@dataclass(slots=True)
class Tally:
    """What one training step adds up, over its optimiser steps.

    sums: ``token_sums`` of this rank. skipped: optimiser steps that were not taken. pg_losses, entropies, kl_losses, grad_norms,
    learning_rates: one per optimiser step that was.
    """

    sums: Tensor
    pg_losses: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    kl_losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    skipped: int = 0

    @classmethod
    def of_lags(cls, num_lags: int) -> "Tally":
        """Nothing yet, for tokens of so many different stalenesses."""
        return cls(torch.zeros(num_lags, len(NAMES), dtype=torch.float64))

    def add_tokens(self, sums: Tensor) -> None:
        """Add the ``token_sums`` of one micro-batch."""
        self.sums += sums.cpu()

    def add_step(self, parts: tuple[float, float, float], grad_norm: float, learning_rate: float) -> None:
        """Add one optimiser step: its aggregated loss, entropy and KL, its gradient norm before clipping, its learning rate."""
        for column, value in zip((self.pg_losses, self.entropies, self.kl_losses), parts, strict=True):
            column.append(value)
        self.grad_norms.append(grad_norm)
        self.learning_rates.append(learning_rate)

    def metrics(self, spec: LossSpec, ranks: Ranks) -> Metrics:
        """The step's metrics.

        Means over the optimiser steps: ``loss``, ``pg_loss``, ``entropy`` and ``kl_loss`` (aggregated as the loss is; only
        where they are computed), ``grad_norm``; ``lr`` is the last step's. The others are means over the trained tokens that
        had a forward pass, and missing where none had. ``ppo_kl``: anchor − π, the anchor being the clip's denominator.
        ``pg_clipfrac``: share where the clip decided. ``train_rollout_logprob_abs_diff``: |old − μ|. ``train_rollout_kl``: KL
        from sampler to trainer, ρ − 1 − log ρ with ρ = old/μ. ``ess``: (Σρ)² / (n·Σρ²), 1 where sampler and policy agree.
        ``importance_ratio``: ρ before its limits. ``tis_clipfrac``: share of ρ that the limits changed, ``icepop_maskfrac``:
        share of tokens that they left without a loss (each only with such a correction).
        ``staleness_N/…``: the same of the tokens that are N versions old, where some are older than the policy.
        ``skipped_steps``: optimiser steps left out since their loss or gradient was no number; only where some were.
        """
        row = self._of_steps(spec)
        if self.skipped:
            row["train/skipped_steps"] = float(self.skipped)
        total = ranks.sum(self.sums)
        row |= token_means("train", total.sum(0), spec)
        ages = [lag for lag, sums in enumerate(total) if sums[0] > 0]
        for lag in ages if any(ages) else ():
            row |= token_means(f"train/staleness_{lag}", total[lag], spec)
        return row

    def _of_steps(self, spec: LossSpec) -> Metrics:
        """What the optimiser steps that were taken say; nothing where none was."""
        if not self.learning_rates:
            return {}
        pg_loss, entropy, kl = mean(self.pg_losses), mean(self.entropies), mean(self.kl_losses)
        row = {
            "train/loss": pg_loss - spec.entropy_coef * entropy + spec.kl_coef * kl,
            "train/pg_loss": pg_loss,
            "train/grad_norm": mean(self.grad_norms),
        }
        if self.learning_rates:
            row["train/lr"] = self.learning_rates[-1]
        if spec.entropy_coef:
            row["train/entropy"] = entropy
        return row | ({} if spec.kl_kind is None else {"train/kl_loss": kl})


def token_means(prefix: str, sums: Tensor, spec: LossSpec) -> Metrics:
    """The means over the tokens of a row of sums."""
    total = dict(zip(NAMES, sums.tolist(), strict=True))
    row: Metrics = {}
    if tokens := total["tokens"]:
        row[f"{prefix}/ppo_kl"] = total["kl"] / tokens
        row[f"{prefix}/pg_clipfrac"] = total["clipped"] / tokens
    if compared := total["compared"]:
        row[f"{prefix}/train_rollout_logprob_abs_diff"] = total["abs_diff"] / compared
        row[f"{prefix}/train_rollout_kl"] = total["sampler_kl"] / compared
        row[f"{prefix}/ess"] = total["ratio"] ** 2 / (compared * total["ratio_squared"])
        row[f"{prefix}/importance_ratio"] = total["ratio"] / compared
        if spec.weighs:
            share = "icepop_maskfrac" if spec.correction == "icepop" else "tis_clipfrac"
            row[f"{prefix}/{share}"] = total["limited"] / compared
    return row
