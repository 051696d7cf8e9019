"""Advantages, losses and off-policy corrections."""

from typing import Literal

from miles.config.options.base import OptionSet, option

PANEL = "Algorithm"
CORRECTION_HELP = (
    "How the loss treats the difference between sampler and policy: `none` clip(π/old), `rollout-logprobs` clip(π/μ), "
    "`tis` clip(π/old) × truncated old/μ, `icepop` the same but zero outside the band, `decoupled` = `tis` with old by version."
)
Correction = Literal["none", "rollout-logprobs", "tis", "icepop", "decoupled"]


class AlgorithmOptions(OptionSet):
    """The policy-gradient objective."""

    advantage_estimator: Literal["grpo"] = option("grpo", "Advantage estimator.", panel=PANEL)
    eps_clip: float = option(0.2, "Lower clip range of the policy ratio: 1 - eps.", panel=PANEL, ge=0, lt=1)
    eps_clip_high: float | None = option(None, "Upper clip range: 1 + eps. By default --eps-clip.", panel=PANEL, ge=0)
    kl_coef: float = option(
        0.0, "Weight of the KL penalty in the reward.", panel=PANEL, ge=0, not_yet="the reference model and its KL terms"
    )
    use_kl_loss: bool = option(False, "Add a KL term to the loss.", panel=PANEL, not_yet="the reference model and its KL terms")
    kl_loss_coef: float = option(
        0.0, "Weight of the KL term in the loss.", panel=PANEL, ge=0, counts_when={"use_kl_loss": [True]}, usual=False
    )
    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl"] = option(
        "k3", "Estimator of the KL term in the loss.", panel=PANEL, counts_when={"use_kl_loss": [True]}, usual=False
    )
    entropy_coef: float = option(0.0, "Weight of the entropy bonus in the loss.", panel=PANEL, ge=0)
    grpo_std_normalization: bool = option(True, "Divide a group's advantages by their standard deviation.", panel=PANEL)
    off_policy_correction: Correction = option(
        "none", CORRECTION_HELP, panel=PANEL, not_yet="`decoupled`", not_yet_values=["decoupled"]
    )
    tis_clip: float = option(
        2.0, "Upper limit of the importance weight.", panel=PANEL, gt=0, counts_when={"off_policy_correction": ["tis", "icepop"]}
    )
    tis_clip_low: float = option(
        0.0, "Lower limit of the importance weight.", panel=PANEL, ge=0, counts_when={"off_policy_correction": ["tis", "icepop"]}
    )
    loss_aggregation: Literal["token-mean", "sequence-mean", "sequence-sum-over-constant"] = option(
        "token-mean", "How token losses become one number, over the whole global batch.", panel=PANEL
    )


class AsyncAlgorithmOptions(AlgorithmOptions):
    """The same, with the correction that off-policy samples need; `none` must be asked for by name."""

    off_policy_correction: Correction = option(
        "tis", CORRECTION_HELP, panel=PANEL, not_yet="`decoupled`", not_yet_values=["decoupled"]
    )
