"""What is known about the files and the machine, read without torch: prompts, the model's limit, a driver, sglang."""

import importlib.metadata
import importlib.util
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miles.errors import ConfigError, Problem

_DRIVER = Path("/proc/driver/nvidia/version")
FIRST_VARLEN = (2, 13)  # torch.nn.attention.varlen with grouped heads
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len")


@dataclass(frozen=True, slots=True)
class Facts:
    """What derived values are made from, beside the options.

    num_prompts: lines of the prompt file that are not blank; 0 where a data source gives the prompts.
    model_context_len: longest sequence the model was made for; None where its ``config.json`` does not say.
    has_cuda: an NVIDIA driver is installed and no variable hides its devices.
    has_sglang, has_router: the packages sglang and sglang-router are installed.
    has_varlen: the installed torch attends to segments of packed rows on GPUs.
    """

    num_prompts: int
    model_context_len: int | None
    has_cuda: bool
    has_sglang: bool
    has_router: bool = False
    has_varlen: bool = False


def read_facts(hf_checkpoint: Path, prompt_data: Path | None, environ: Mapping[str, str]) -> Facts:
    """The facts of a model folder, a prompt file (both are known to be readable) and this machine."""
    return Facts(
        0 if prompt_data is None else count_lines(prompt_data),
        read_context_len(hf_checkpoint),
        has_nvidia_driver(environ),
        importlib.util.find_spec("sglang") is not None,
        importlib.util.find_spec("sglang_router") is not None,
        _version_of("torch") >= FIRST_VARLEN,
    )


def _version_of(package: str) -> tuple[int, ...]:
    """Major and minor number of an installed package, without importing it."""
    return tuple(int(number) for number in importlib.metadata.version(package).split(".")[:2])


def count_lines(path: Path) -> int:
    """Lines that are not blank."""
    with path.open("rb") as file:
        return sum(1 for line in file if not line.isspace())


def first_line(path: Path) -> tuple[int, bytes] | None:
    """The first line that is not blank and its number, from 1; None where there is none."""
    with path.open("rb") as file:
        return next(((number, line) for number, line in enumerate(file, 1) if not line.isspace()), None)


def read_model_config(hf_checkpoint: Path) -> Mapping[str, Any]:
    """The ``config.json`` of a model folder.

    Raises:
        ConfigError: there is none, or it is no JSON object.
    """
    path = hf_checkpoint / "config.json"
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        why = f"has a config.json that cannot be read: {error}"
        raise ConfigError([Problem("hf_checkpoint", str(hf_checkpoint), "", why, "Give an HF model folder")]) from error
    if not isinstance(content, dict):
        why = "has a config.json that is no object"
        raise ConfigError([Problem("hf_checkpoint", str(hf_checkpoint), "", why, "Give an HF model folder")])
    return content


def read_context_len(hf_checkpoint: Path) -> int | None:
    """The model's own limit in tokens; None where it has none."""
    content = read_model_config(hf_checkpoint)
    for part in (content, content.get("text_config")):
        for key in CONTEXT_KEYS:
            if isinstance(part, dict) and isinstance(part.get(key), int):
                return int(part[key])
    return None


def read_vocab_size(hf_checkpoint: Path) -> int | None:
    """Tokens of the model's vocabulary; None where its ``config.json`` does not say.

    Raises:
        ConfigError: as ``read_model_config``.
    """
    size = read_model_config(hf_checkpoint).get("vocab_size")
    return size if isinstance(size, int) else None


def has_nvidia_driver(environ: Mapping[str, str]) -> bool:
    """Whether CUDA can be expected here, without asking torch."""
    if environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    return _DRIVER.exists() or shutil.which("nvidia-smi") is not None


def checkpoint_in(folder: Path) -> Path:
    """The checkpoint that a path names: itself, or the newest of a run or of its folder of checkpoints; absolute.

    Raises:
        ConfigError: there is none.
    """
    for place in (folder, folder / "checkpoints"):
        pointer = place / "latest"
        found = place / pointer.read_text().strip() if pointer.is_file() else place
        if (found / "trainer" / "files.json").is_file():
            return found.absolute()
    why = "holds no checkpoint of a run" if folder.is_dir() else "there is no such folder"
    raise ConfigError([Problem("load", str(folder), "", why, "Pass a run folder, or one such as RUN/checkpoints/rollout-000119")])
