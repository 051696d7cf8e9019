"""The model that is trained, and its checkpoints."""

from pathlib import Path
from typing import Literal

from miles.config.options.base import OptionSet, option

PANEL = "Model and checkpoints"
Dtype = Literal["float32", "bfloat16"]


class ModelOptions(OptionSet):
    """Which weights a run starts from and where it writes its own."""

    hf_checkpoint: Path = option(
        ...,
        "HF folder (config, tokenizer, safetensors) that training starts from.",
        panel=PANEL,
        kind="folder",
        on_resume="impossible",
    )
    ref_load: Path | None = option(
        None,
        "HF folder of the reference model that KL terms compare with. By default --hf-checkpoint.",
        panel=PANEL,
        kind="folder",
        counts_when={"use_kl_loss": [True], "kl_coef": ["given"]},
        on_resume="course",
    )
    ref_update_interval: int | None = option(
        None,
        "Rollouts after which the reference model becomes the policy of the moment; by default it never changes.",
        panel=PANEL,
        ge=1,
        counts_when={"use_kl_loss": [True], "kl_coef": ["given"]},
        usual=False,
        on_resume="impossible",
    )
    load: Path | None = option(
        None,
        "Checkpoint folder of another run to start from (weights and optimiser), instead of --hf-checkpoint.",
        panel=PANEL,
        kind="folder",
        not_yet="starting from another run's trainer state; pass its `hf` folder as --hf-checkpoint",
        on_resume="course",
    )
    save: Path | None = option(
        None,
        "Folder for checkpoints; by default `checkpoints` in the run folder.",
        panel=PANEL,
        kind="folder",
        on_resume="impossible",
    )
    save_interval: int | None = option(
        None,
        "Save a checkpoint every so many rollouts; by default only at the end and on Ctrl-C.",
        panel=PANEL,
        ge=1,
        on_resume="safe",
    )
    keep_checkpoints: int | None = option(
        None, "Newest checkpoints that stay when another is written; by default all.", panel=PANEL, ge=1, on_resume="safe"
    )
    keep_best_by: str | None = option(
        None,
        "Metric of an evaluation (`eval/NAME`) whose best checkpoint stays, too.",
        panel=PANEL,
        counts_when={"keep_checkpoints": ["given"]},
        usual=False,
        on_resume="safe",
    )
    dtype: Dtype = option(
        "float32",
        "Number type of forward and backward pass, in the policy and the engines; weights, moments and losses of the policy "
        "stay float32.",
        panel=PANEL,
        known_as=["param_dtype", "torch_dtype", "mixed_precision"],
        on_resume="course",
    )
    gradient_checkpointing: bool = option(
        False,
        "Recompute activations in the backward pass: less memory, about a third more time.",
        panel=PANEL,
        usual=False,
        on_resume="safe",
    )
