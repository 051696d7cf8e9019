"""What a start would refuse that no option tells by itself, looked for in a dry run: lines of files, and folders of others.

A dry run has no tokenizer, so that it finds lines that are no prompts, and leaves their lengths to the start.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from miles.config.resolution import Resolution
from miles.errors import DataError, MachineError
from miles.rollout.prompt_lines import PromptFormat, read_lines
from miles.tracking.last_start import read_last_start
from miles.tracking.run_folder import RunFolder, refuse_checkpoints_of_another_run

NEW_RUN = Path("runs/new")


class AnyTokenizer:
    """Stands in for the model's own where only the form of prompts is looked at: every text has one token."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, Any]:
        """One token."""
        return {"input_ids": [0]}

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Nothing."""
        return ""

    def apply_chat_template(self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool) -> str:
        """The messages' texts."""
        return "\n".join(message["content"] for message in conversation)


def refuse_what_a_start_would(resolution: Resolution) -> None:
    """Look at what a start looks at before it starts anything.

    Raises:
        DataError: lines of the prompt files are no prompts; all of them, of all files.
        MachineError: another process works in the run folder.
        ConfigError: the folder for checkpoints holds those of another run.
    """
    refuse_lines(resolution)
    refuse_folder(resolution)


def refuse_folder(resolution: Resolution[Any]) -> None:
    """Look at the run folder.

    Raises:
        MachineError: another process works in it.
        ConfigError: the folder for checkpoints holds those of another run.
    """
    path, save = resolution.config.run.run_dir, resolution.config.model.save
    folder = RunFolder((path or NEW_RUN).absolute(), (save or (path or NEW_RUN) / "checkpoints").absolute())
    start = read_last_start(folder.path)
    if start is not None and start.is_alive():
        raise MachineError(
            f"{folder.path} is in use by process {start.pid} on {start.host}. Wait for it or give another --run-dir."
        )
    refuse_checkpoints_of_another_run(folder)


def refuse_lines(resolution: Resolution) -> None:
    """Read every prompt file as far as that is possible without a tokenizer.

    Raises:
        DataError: lines are no prompts.
    """
    config = resolution.config
    line_format = PromptFormat.of(config.data, resolution.derived.max_prompt_len)
    problems = []
    training = [config.data.prompt_data] if config.data.prompt_data else []
    for path in (*training, *(path for _, path in config.evaluation.eval_prompt_data)):
        try:
            read_lines(path, AnyTokenizer(), line_format)
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
