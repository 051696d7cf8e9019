"""What ``miles sft`` has beside the options that it shares with the other commands."""

from typing import Literal

from miles.config.options.base import option
from miles.config.options.data import PANEL, LineOptions
from miles.config.options.model import PANEL as MODEL_PANEL
from miles.config.options.model import TrainedModelOptions


class SftModelOptions(TrainedModelOptions):
    """The model, and whether it begins with weights that nobody has trained."""

    random_weights: bool = option(
        False,
        "Begin with random weights, drawn by --seed, in the shape of the folder's config.json instead of with its own.",
        panel=MODEL_PANEL,
        usual=False,
        on_resume="impossible",
    )


class ExampleOptions(LineOptions):
    """Examples: what is given, and the answers whose tokens are learned."""

    example_format: Literal["messages", "prompt-label"] = option(
        "messages",
        "What a line holds: `messages` a conversation, of which every turn of the assistant is learned, written by the chat "
        "template; `prompt-label` a prompt and its answer, under --input-key and --label-key.",
        panel=PANEL,
        on_resume="course",
    )
    messages_key: str = option(
        "messages",
        "Key of the conversation in a line.",
        panel=PANEL,
        counts_when={"example_format": ["messages"]},
        on_resume="course",
    )
    shuffle: bool = option(True, "Shuffle the examples of every epoch, by --seed.", panel=PANEL, on_resume="course")
    train_iters: int | None = option(
        None,
        "Number of optimiser steps. This or --num-epoch.",
        panel=PANEL,
        ge=1,
        on_resume="safe",
    )


LEARNED_BATCH_SIZE = 32  # samples of an optimiser step unless --global-batch-size says otherwise
