"""Evaluation during training."""

from pathlib import Path
from typing import Literal

from miles.config.options.base import OptionSet, option

PANEL = "Evaluation"
NEEDS_DATA = {"eval_prompt_data": ["given"]}
NEEDS_EVALUATION = {"eval_prompt_data": ["given"], "eval_checkpoint_function_path": ["given"]}
BESIDE_TRAINING = {"eval_num_gpus": ["given"], "eval_checkpoint_function_path": ["given"]}


class HeldOutOptions(OptionSet):
    """Held-out data and when it is looked at."""

    eval_prompt_data: tuple[tuple[str, Path], ...] = option(
        (),
        "A held-out data set: NAME PATH. May be repeated.",
        panel=PANEL,
        kind="pairs",
        metavar="NAME PATH",
        suffixes=["jsonl"],
        on_resume="safe",
    )
    eval_interval: int | None = option(
        None,
        "Evaluate every so many rollouts (`miles sft`: steps), beside before the first and after the last.",
        panel=PANEL,
        ge=1,
        counts_when=NEEDS_EVALUATION,
        on_resume="safe",
    )
    skip_eval_before_train: bool = option(
        False,
        "Do not evaluate the weights that the run starts with.",
        panel=PANEL,
        counts_when=NEEDS_EVALUATION,
        on_resume="safe",
    )


class EvalOptions(HeldOutOptions):
    """Held-out prompts, answered at fixed points with the weights that are published then."""

    eval_function_path: str | None = option(
        None,
        "Dotted path of your evaluation function.",
        panel=PANEL,
        kind="dotted",
        usual=False,
        counts_when=NEEDS_DATA,
        on_resume="safe",
    )
    n_samples_per_eval_prompt: int = option(
        1,
        "Answers sampled for each held-out prompt.",
        panel=PANEL,
        ge=1,
        counts_when=NEEDS_DATA,
        on_resume="safe",
    )
    eval_temperature: float | None = option(
        None,
        "Temperature of evaluation; 0 is greedy. By default --rollout-temperature.",
        panel=PANEL,
        ge=0,
        counts_when=NEEDS_DATA,
        on_resume="safe",
    )
    eval_top_p: float | None = option(
        None,
        "Top-p of evaluation. By default --rollout-top-p.",
        panel=PANEL,
        gt=0,
        le=1,
        usual=False,
        counts_when=NEEDS_DATA,
        on_resume="safe",
    )
    eval_top_k: int | None = option(
        None,
        "Top-k of evaluation. By default --rollout-top-k.",
        panel=PANEL,
        ge=-1,
        usual=False,
        counts_when=NEEDS_DATA,
        on_resume="safe",
    )
    eval_max_response_len: int | None = option(
        None,
        "Longest answer of evaluation in tokens. By default --rollout-max-response-len.",
        panel=PANEL,
        ge=1,
        usual=False,
        counts_when=NEEDS_DATA,
        on_resume="safe",
    )
    eval_num_gpus: int = option(
        0,
        "GPUs of engines for evaluation alone (on a CPU: engine processes), which goes on beside training. "
        "With 0 the rollout's engines evaluate and production pauses.",
        panel=PANEL,
        ge=0,
        counts_when=NEEDS_DATA,
        on_resume="safe",
    )
    eval_checkpoint_function_path: str | None = option(
        None,
        "Dotted path of your function that is given an HF folder and its weight version; it runs beside training.",
        panel=PANEL,
        kind="dotted",
        usual=False,
        on_resume="safe",
    )
    eval_overflow: Literal["wait", "skip"] = option(
        "wait",
        "When an evaluation comes due while the one before still runs beside training: wait for it, or skip the new one.",
        panel=PANEL,
        usual=False,
        counts_when=BESIDE_TRAINING,
        on_resume="safe",
    )
    eval_timeout_seconds: float = option(
        600.0,
        "An evaluation beside training that takes longer is left out.",
        panel=PANEL,
        gt=0,
        usual=False,
        counts_when=BESIDE_TRAINING,
        on_resume="safe",
    )
