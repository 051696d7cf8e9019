"""The prompts of a run, read and checked before any process is started."""

from dataclasses import dataclass
from pathlib import Path

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.errors import DataError
from miles.loops.evaluate import EvalDataset
from miles.rollout.build import prompt_source, training_prompts
from miles.rollout.contracts import Prompts
from miles.rollout.prompts import Tokenizer


@dataclass(frozen=True, slots=True)
class RunData:
    """Tokenizer, training prompts, held-out prompts."""

    tokenizer: Tokenizer
    prompts: Prompts
    heldout: tuple[EvalDataset, ...]


def load_data(config: AnyConfig, derived: Derived) -> RunData:
    """Read everything that has prompts in it.

    Raises:
        DataError: the tokenizer or a line of a prompt file cannot be used; file and line are named.
    """
    tokenizer = load_tokenizer(config.model.hf_checkpoint)
    prompts = training_prompts(config, derived, tokenizer)
    heldout = tuple(
        EvalDataset(name, prompt_source(config, derived, tokenizer, path).all_prompts())
        for name, path in config.evaluation.eval_prompt_data
    )
    return RunData(tokenizer, prompts, heldout)


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint.

    Raises:
        DataError: the folder holds none that transformers can load.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise DataError(
            f"no tokenizer can be loaded from --hf-checkpoint {folder}: {first}. Put its tokenizer files there."
        ) from error
    return tokenizer
