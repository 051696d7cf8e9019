"""Prompts, and how many of them one training step consumes."""

from pathlib import Path

from miles.config.options.base import OptionSet, option

PANEL = "Data"


class LineOptions(OptionSet):
    """What a line of a data file holds, and how much of it a run takes."""

    prompt_data: Path = option(
        ...,
        "JSONL file with one prompt, or of `miles sft` one example, per line.",
        panel=PANEL,
        kind="file",
        suffixes=["jsonl"],
        on_resume="course",
    )
    input_key: str = option(
        "prompt", "Key of the prompt in a line: a string, or a list of chat messages.", panel=PANEL, on_resume="course"
    )
    label_key: str | None = option(
        "label",
        "Key of what the reward needs to judge an answer; of `miles sft` of the answer itself.",
        panel=PANEL,
        on_resume="course",
    )
    apply_chat_template: bool = option(
        False, "Format the prompt with the tokenizer's chat template.", panel=PANEL, on_resume="course"
    )
    num_epoch: int | None = option(
        None,
        "Number of passes over the prompts. This or --num-rollout (`miles sft`: --train-iters).",
        panel=PANEL,
        ge=1,
        alternative="num_rollout",
        known_as=["num_train_epochs", "total_epochs"],
        on_resume="safe",
    )
    global_batch_size: int | None = option(
        None,
        "Samples that one optimiser step consumes.",
        panel=PANEL,
        ge=1,
        alternative="num_steps_per_rollout",
        known_as=["train_batch_size", "batch_size"],
        on_resume="course",
    )
    rollout_max_context_len: int | None = option(
        None,
        "Longest prompt and answer together in tokens. By default the model's own limit.",
        panel=PANEL,
        ge=2,
        on_resume="course",
    )


class DataOptions(LineOptions):
    """Where prompts come from and the sizes of a rollout.

    The batch equation ``rollout_batch_size × n_samples_per_prompt = global_batch_size × num_steps_per_rollout``
    derives the side that is not given.
    """

    prompt_data: Path | None = option(  # type: ignore[assignment]  # a data source may stand in for the file
        None,
        "JSONL file with one prompt, or of `miles sft` one example, per line. This or --data-source-path.",
        panel=PANEL,
        kind="file",
        suffixes=["jsonl"],
        alternative="data_source_path",
        needed_unless="data_source_path",
        on_resume="course",
    )
    data_source_path: str | None = option(
        None,
        "Dotted path of your data source class, which gives prompts one after another. This or --prompt-data.",
        panel=PANEL,
        kind="dotted",
        alternative="prompt_data",
        usual=False,
        on_resume="course",
    )
    metadata_key: str | None = option(
        None, "Key of an object handed to rewards and generate functions.", panel=PANEL, usual=False, on_resume="course"
    )
    rollout_shuffle: bool = option(
        False,
        "Shuffle the prompts of every epoch, by --rollout-seed.",
        panel=PANEL,
        counts_when={"prompt_data": ["given"]},
        on_resume="course",
    )
    num_rollout: int | None = option(
        None,
        "Number of rollouts (training iterations). This or --num-epoch.",
        panel=PANEL,
        ge=1,
        alternative="num_epoch",
        known_as=["num_steps", "max_steps", "total_training_steps"],
        on_resume="safe",
    )
    rollout_batch_size: int = option(
        32, "Prompt groups that one rollout consumes (groups, not samples).", panel=PANEL, ge=1, on_resume="course"
    )
    n_samples_per_prompt: int = option(
        8,
        "Answers sampled for each prompt: the group size.",
        panel=PANEL,
        ge=1,
        known_as=["num_generations", "group_size"],
        on_resume="impossible",
    )
    num_steps_per_rollout: int | None = option(
        None, "Optimiser steps taken on one rollout.", panel=PANEL, ge=1, alternative="global_batch_size", on_resume="course"
    )
    rollout_max_prompt_len: int | None = option(
        None,
        "Longest prompt in tokens; a longer one is refused at start. By default the context minus the answer.",
        panel=PANEL,
        ge=1,
        on_resume="course",
    )
    rollout_max_response_len: int = option(
        1024,
        "Longest answer in tokens.",
        panel=PANEL,
        ge=1,
        known_as=["max_new_tokens", "max_completion_length"],
        on_resume="course",
    )
