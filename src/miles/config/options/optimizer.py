"""AdamW, its schedule and the micro-batches."""

from typing import Literal

from miles.config.options.base import OptionSet, option

PANEL = "Optimiser"


class OptimizerOptions(OptionSet):
    """Optimiser and micro-batching of the policy."""

    lr: float = option(1e-6, "Learning rate.", panel=PANEL, gt=0, known_as=["learning_rate"], on_resume="course")
    min_lr: float = option(
        0.0,
        "Learning rate at the end of the decay.",
        panel=PANEL,
        ge=0,
        counts_when={"lr_decay_style": ["linear", "cosine"]},
        on_resume="course",
    )
    lr_decay_style: Literal["constant", "linear", "cosine"] = option(
        "constant", "Shape of the learning rate after warm-up.", panel=PANEL, on_resume="course"
    )
    lr_warmup_iters: int = option(
        0, "Optimiser steps over which the learning rate rises from zero.", panel=PANEL, ge=0, on_resume="course"
    )
    weight_decay: float = option(0.0, "AdamW weight decay.", panel=PANEL, ge=0, on_resume="course")
    adam_beta1: float = option(0.9, "AdamW beta 1.", panel=PANEL, ge=0, lt=1, usual=False, on_resume="course")
    adam_beta2: float = option(0.95, "AdamW beta 2.", panel=PANEL, ge=0, lt=1, usual=False, on_resume="course")
    adam_eps: float = option(1e-8, "AdamW epsilon.", panel=PANEL, gt=0, usual=False, on_resume="course")
    clip_grad: float = option(1.0, "Largest gradient norm.", panel=PANEL, gt=0, known_as=["max_grad_norm"], on_resume="course")
    non_finite_steps: Literal["stop", "skip"] = option(
        "stop",
        "An optimiser step whose loss or gradient is no number: `stop` ends the run and keeps the batch for `miles replay`, "
        "`skip` leaves the step out and counts it.",
        panel=PANEL,
        usual=False,
        known_as=["check_for_nan_in_loss_and_grad"],
        on_resume="course",
    )
    optimizer_cpu_offload: bool = option(
        False,
        "Keep weights, gradients and moments of the policy in host memory and take the optimiser's steps there; needs a GPU.",
        panel=PANEL,
        usual=False,
        known_as=["cpu_offload", "offload_optimizer"],
        on_resume="safe",
    )
    micro_batch_size: int | None = option(
        None,
        "Samples in one forward pass. This or --max-tokens-per-gpu.",
        panel=PANEL,
        ge=1,
        alternative="max_tokens_per_gpu",
        on_resume="safe",
    )
    max_tokens_per_gpu: int | None = option(
        None,
        "Tokens in one forward pass; micro-batches are balanced by tokens. This or --micro-batch-size.",
        panel=PANEL,
        ge=1,
        alternative="micro_batch_size",
        on_resume="safe",
    )
    packing: Literal["auto", "block-mask", "varlen"] = option(
        "auto",
        "How rows of a forward pass stand: `block-mask` pads them and masks what answers must not see, `varlen` puts them end to "
        "end and attends segment by segment. `auto` is varlen on GPUs in bfloat16 if they and the model are fit for it, else "
        "block-mask.",
        panel=PANEL,
        usual=False,
        known_as=["padding_free", "use_remove_padding", "attn_implementation", "qkv_format"],
        on_resume="safe",
    )
    vocab_chunk_size: int | None = option(
        None,
        "Tokens of the vocabulary whose logits exist at once; by default all. Less memory for long answers, somewhat more time.",
        panel=PANEL,
        ge=1,
        usual=False,
        on_resume="safe",
    )
