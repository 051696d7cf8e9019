"""Advantages, losses and off-policy corrections."""

from typing import Literal, get_args

from miles.config.options.base import OptionSet, option

PANEL = "Algorithm"
CORRECTION_HELP = (
    "How the loss treats the difference between sampler and policy: `none` clip(π/old), `rollout-logprobs` clip(π/μ), "
    "`tis` clip(π/old) × truncated old/μ, `icepop` the same but zero outside the band, `decoupled` = `tis` with old by "
    "--proximal-policy."
)
ESTIMATOR_HELP = (
    "What an answer is worth, and the loss that goes with it: `grpo` beside its group; `dr_grpo` without the division by the "
    "deviation; `rloo` beside the others of its group; `reinforce_plus_plus` beside the whole rollout, `…_baseline` after taking "
    "off the group's mean; `gspo` and `cispo` are `grpo` with a ratio of whole sequences and with a clipped weight; `ppo` each "
    "token beside the value that a critic gave the text before it."
)
WEIGHTED = ["tis", "icepop", "decoupled"]
Correction = Literal["none", "rollout-logprobs", "tis", "icepop", "decoupled"]
Estimator = Literal[
    "grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gspo", "cispo", "ppo"
]  # fmt: skip
Aggregation = Literal["token-mean", "sequence-mean", "sequence-sum-over-constant"]


class AlgorithmOptions(OptionSet):
    """The policy-gradient objective."""

    advantage_estimator: Estimator = option("grpo", ESTIMATOR_HELP, panel=PANEL, on_resume="course")
    grpo_std_normalization: bool = option(
        True,
        "Divide a group's advantages by their standard deviation.",
        panel=PANEL,
        counts_when={"advantage_estimator": ["grpo", "gspo", "cispo"]},
        on_resume="course",
    )
    normalize_advantages: bool = option(
        False,
        "Bring the advantages of a rollout's trained tokens to mean 0 and deviation 1 (REINFORCE++ always does).",
        panel=PANEL,
        counts_when={"advantage_estimator": ["grpo", "dr_grpo", "rloo", "gspo", "cispo", "ppo"]},
        usual=False,
        on_resume="course",
    )
    overlong_buffer_len: int | None = option(
        None,
        "Tokens before the length limit over which an answer's reward falls (DAPO); by default none.",
        panel=PANEL,
        ge=1,
        usual=False,
        on_resume="course",
    )
    overlong_penalty_factor: float = option(
        1.0,
        "What an answer that reaches the length limit loses of its reward.",
        panel=PANEL,
        gt=0,
        counts_when={"overlong_buffer_len": ["given"]},
        usual=False,
        on_resume="course",
    )
    eps_clip: float = option(0.2, "Lower clip range of the policy ratio: 1 - eps.", panel=PANEL, ge=0, lt=1, on_resume="course")
    eps_clip_high: float | None = option(
        None, "Upper clip range: 1 + eps. By default --eps-clip.", panel=PANEL, ge=0, on_resume="course"
    )
    eps_clip_c: float | None = option(
        None,
        "Dual clip: a token of negative advantage costs at most this many times its advantage. By default no limit.",
        panel=PANEL,
        gt=1,
        counts_when={"advantage_estimator": [name for name in get_args(Estimator) if name != "cispo"]},
        usual=False,
        on_resume="course",
    )
    kl_coef: float = option(
        0.0, "Weight of the KL penalty in the reward (old against the reference, k1).", panel=PANEL, ge=0, on_resume="course"
    )
    use_kl_loss: bool = option(
        False, "Add a KL term (policy against the reference) to the loss.", panel=PANEL, on_resume="course"
    )
    kl_loss_coef: float = option(
        0.0,
        "Weight of the KL term in the loss; 0 only measures it.",
        panel=PANEL,
        ge=0,
        counts_when={"use_kl_loss": [True]},
        usual=False,
        on_resume="course",
    )
    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl"] = option(
        "k3",
        "Estimator of the KL term in the loss; `low_var_kl` is `k3` limited to ±10.",
        panel=PANEL,
        counts_when={"use_kl_loss": [True]},
        usual=False,
        on_resume="course",
    )
    use_unbiased_kl: bool = option(
        False,
        "Multiply the KL term by π/old, so that its gradient is that of the KL on off-policy tokens, too.",
        panel=PANEL,
        counts_when={"use_kl_loss": [True]},
        usual=False,
        on_resume="course",
    )
    entropy_coef: float = option(0.0, "Weight of the entropy bonus in the loss.", panel=PANEL, ge=0, on_resume="course")
    off_policy_correction: Correction = option("none", CORRECTION_HELP, panel=PANEL, on_resume="course")
    proximal_policy: Literal["interpolated", "recomputed"] = option(
        "interpolated",
        "Where `decoupled` takes old from: `interpolated` between sampler and policy by version, or `recomputed` by a forward "
        "pass before the rollout's later steps.",
        panel=PANEL,
        counts_when={"off_policy_correction": ["decoupled"]},
        usual=False,
        known_as=["prox_logp_method"],
        on_resume="course",
    )
    tis_clip: float = option(
        2.0,
        "Upper limit of the importance weight.",
        panel=PANEL,
        gt=0,
        counts_when={"off_policy_correction": WEIGHTED},
        on_resume="course",
    )
    tis_clip_low: float = option(
        0.0,
        "Lower limit of the importance weight.",
        panel=PANEL,
        ge=0,
        counts_when={"off_policy_correction": WEIGHTED},
        on_resume="course",
    )
    loss_aggregation: Aggregation | None = option(
        None,
        "How token losses become one number, over the whole global batch. By default by the estimator: `dr_grpo` "
        "`sequence-sum-over-constant`, `gspo` `sequence-mean`, the others `token-mean`.",
        panel=PANEL,
        on_resume="course",
    )
    custom_loss_function_path: str | None = option(
        None,
        "Loss of each token from your own function of `miles.policy.losses.TokenColumns`, instead of the estimator's.",
        panel=PANEL,
        kind="dotted",
        usual=False,
        on_resume="course",
    )


class AsyncAlgorithmOptions(AlgorithmOptions):
    """The same, with the correction that off-policy samples need; `none` must be asked for by name."""

    off_policy_correction: Correction = option("tis", CORRECTION_HELP, panel=PANEL, on_resume="course")
