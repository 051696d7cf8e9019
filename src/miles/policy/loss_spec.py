"""Everything that is chosen about the loss, read from the options once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from miles.config.commands import AnyConfig
from miles.config.derived import loss_aggregation
from miles.config.dotted import load_dotted
from miles.config.options.algorithm import Aggregation, Correction

Surrogate = Literal["clip", "gspo", "cispo"]
KlKind = Literal["k1", "k2", "k3", "low_var_kl"]


@dataclass(frozen=True, slots=True)
class LossSpec:
    """What the loss is made of.

    surrogate: clip of each token's ratio, of the sequence's (``gspo``), or of a detached weight (``cispo``).
    eps_low, eps_high: the ratio is clipped to [1 − eps_low, 1 + eps_high].
    eps_dual: limit of a negative advantage's factor, or None.
    weight_low, weight_high: limits of the importance weight of ``tis``, ``icepop`` and ``decoupled``.
    recomputes_old: whether ``decoupled`` takes old from a forward pass, as ``tis`` does, instead of interpolating.
    kl_kind: estimator of the KL to the reference in the loss; None where there is none.
    constant: what ``sequence-sum-over-constant`` divides a sample's sum by, in tokens.
    custom: the user's loss, which takes ``TokenColumns`` and gives [tokens].
    """

    correction: Correction = "none"
    aggregation: Aggregation = "token-mean"
    surrogate: Surrogate = "clip"
    eps_low: float = 0.2
    eps_high: float = 0.2
    eps_dual: float | None = None
    weight_low: float = 0.0
    weight_high: float = 2.0
    entropy_coef: float = 0.0
    kl_kind: KlKind | None = None
    kl_coef: float = 0.0
    kl_unbiased: bool = False
    constant: float = 1.0
    custom: Callable[..., Any] | None = None
    recomputes_old: bool = False

    @classmethod
    def from_config(cls, config: AnyConfig) -> "LossSpec":
        """The spec that the options ask for; the constant is ``rollout_max_response_len``, as in Dr. GRPO.

        Raises:
            ConfigError: the custom loss cannot be imported.
        """
        chosen = config.algorithm
        path = chosen.custom_loss_function_path
        estimator = chosen.advantage_estimator
        return cls(
            correction=chosen.off_policy_correction,
            aggregation=loss_aggregation(chosen.loss_aggregation, estimator),
            surrogate=estimator if estimator in ("gspo", "cispo") else "clip",
            eps_low=chosen.eps_clip,
            eps_high=chosen.eps_clip if chosen.eps_clip_high is None else chosen.eps_clip_high,
            eps_dual=chosen.eps_clip_c,
            weight_low=chosen.tis_clip_low,
            weight_high=chosen.tis_clip,
            entropy_coef=chosen.entropy_coef,
            kl_kind=chosen.kl_loss_type if chosen.use_kl_loss else None,
            kl_coef=chosen.kl_loss_coef,
            kl_unbiased=chosen.use_unbiased_kl,
            constant=float(config.data.rollout_max_response_len),
            recomputes_old=chosen.proximal_policy == "recomputed",
            custom=None if path is None else load_dotted(path, "custom_loss_function_path", kind="loss"),
        )

    @property
    def needs_old(self) -> bool:
        """Whether old log-probs must come from a forward pass of their own where a rollout has several optimiser steps."""
        return self.correction in ("none", "tis", "icepop") or (self.correction == "decoupled" and self.recomputes_old)

    @property
    def reads_old(self) -> bool:
        """Whether the loss reads old log-probs at all."""
        return self.correction != "rollout-logprobs"

    @property
    def weighs(self) -> bool:
        """Whether tokens have an importance weight."""
        return self.correction in ("tis", "icepop", "decoupled")

    @property
    def skips_zero_advantages(self) -> bool:
        """Whether a sample of advantage 0 adds nothing to the gradient and to what is measured."""
        return self.entropy_coef == 0.0 and self.kl_kind is None and self.custom is None
