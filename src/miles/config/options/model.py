"""The model that is trained, and its checkpoints."""

from pathlib import Path
from typing import Literal

from miles.config.options.base import OptionSet, option

PANEL = "Model and checkpoints"
Dtype = Literal["float32", "bfloat16"]


class TrainedModelOptions(OptionSet):
    """Which weights a run starts from and where it writes its own."""

    hf_checkpoint: Path = option(
        ...,
        "HF folder (config, tokenizer, safetensors) that training starts from, or the hub name of a model in the local cache.",
        panel=PANEL,
        kind="folder",
        on_resume="impossible",
    )
    load: Path | None = option(
        None,
        "Checkpoint of another run, or its folder, whose weights and optimiser state a new run begins with; rollouts, schedule "
        "and prompts begin anew. By default the run begins with --hf-checkpoint.",
        panel=PANEL,
        kind="folder",
        on_resume="safe",
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
        "Save a checkpoint every so many rollouts (`miles sft`: steps); by default only at the end and on Ctrl-C.",
        panel=PANEL,
        ge=1,
        on_resume="safe",
    )
    async_save: bool = option(
        False,
        "Write checkpoints in the background: a step waits until they are copied into host memory, not for the disk.",
        panel=PANEL,
        usual=False,
        on_resume="safe",
    )
    keep_checkpoints: int | None = option(
        None, "Newest checkpoints that stay when another is written; by default all.", panel=PANEL, ge=1, on_resume="safe"
    )
    keep_best_by: str | None = option(
        None,
        "Metric of an evaluation (`eval/NAME`) whose best checkpoint stays, too; of `miles sft` that of the lowest loss.",
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


class ModelOptions(TrainedModelOptions):
    """The same, and the reference that KL terms compare with."""

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
