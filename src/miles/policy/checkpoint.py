"""Checkpoints: an HF folder that others can use, and beside it what only a resumed run needs.

<folder>/hf/                  config, tokenizer, safetensors; loadable by transformers
<folder>/trainer/state.pt     optimiser, schedule, random state, step counter
<folder>/trainer/files.json   size and CRC-32 of every file, so that damage is found before anything is loaded
"""

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from miles.errors import CheckpointError, PolicyError
from miles.policy.folders import written_aside
from miles.policy.model import read_causal_lm
from miles.policy.trainer import Trainer

HF, STATE, FILES = "hf", "trainer/state.pt", "trainer/files.json"
FORMAT = 1
WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})
CHUNK_BYTES = 1 << 20
REMEDY = "Resume from an older checkpoint (the `latest` file beside it names the one in use), or start anew."


def save_checkpoint(trainer: Trainer, folder: Path, source: Path) -> None:
    """Write a checkpoint aside, force it to the disk, then rename it; a checkpoint that stood there survives a failure.

    Args:
        trainer: what is saved.
        folder: the checkpoint.
        source: the HF folder the run started from; tokenizer and whatever else is no weight are copied from it.

    Raises:
        CheckpointError: it could not be written.
    """
    try:
        with written_aside(folder, durable=True) as aside:
            copy_companions(source, aside / HF)
            trainer.model.causal_lm.save_pretrained(aside / HF)
            (aside / STATE).parent.mkdir()
            torch.save(trainer_state(trainer), aside / STATE)
            (aside / FILES).write_text(json.dumps(fingerprints(aside)))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"the checkpoint {folder} could not be written: {error}. Nothing that was there is lost. "
            "Free disk space or give another folder with --save."
        ) from error


def copy_companions(source: Path, target: Path) -> None:
    """Copy every file beside the weights: tokenizer, chat template, generation config."""
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix not in WEIGHT_SUFFIXES and not path.name.endswith(".index.json"):
            shutil.copyfile(path, target / path.name)


def trainer_state(trainer: Trainer) -> dict[str, Any]:
    """Everything beside the weights that the next optimiser step depends on."""
    return {
        "format": FORMAT,
        "num_optimizer_steps": trainer.num_optimizer_steps,
        "optimizer": trainer.optimizer.state_dict(),
        "schedule": trainer.schedule.state_dict(),
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def load_checkpoint(trainer: Trainer, folder: Path) -> None:
    """Go on from a checkpoint; the trainer is changed only after all of it has been read and fits.

    Raises:
        CheckpointError: it is missing, damaged, or of another model.
    """
    check_files(folder)
    state = read_state(folder)
    try:
        saved = read_causal_lm(folder / HF)
    except PolicyError as error:
        raise CheckpointError(f"the checkpoint {folder} cannot be used: {error} {REMEDY}") from error
    weights, own = saved.state_dict(), trainer.model.causal_lm.state_dict()
    refuse_other_model(folder, weights, own)
    trainer.model.causal_lm.load_state_dict(weights)
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.schedule.load_state_dict(state["schedule"])
    trainer.num_optimizer_steps = state["num_optimizer_steps"]
    torch.set_rng_state(state["random"])
    if state["random_cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["random_cuda"])


def read_state(folder: Path) -> dict[str, Any]:
    """The trainer's part."""
    try:
        state: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{folder / STATE} cannot be read: {error}. {REMEDY}") from error
    if state.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder / STATE} has format {state.get('format')}, this version of miles reads {FORMAT}. "
            f"Start anew with --hf-checkpoint {folder / HF}."
        )
    return state


def refuse_other_model(folder: Path, saved: dict[str, Any], own: dict[str, Any]) -> None:
    """Refuse weights whose names or shapes are not the trainer's."""
    other = sorted(saved.keys() ^ own.keys()) or [name for name in own if saved[name].shape != own[name].shape]
    if other:
        raise CheckpointError(
            f"the checkpoint {folder} is of another model: {other[0]} and {len(other) - 1} more weights differ in name or shape. "
            "Resume with the --hf-checkpoint that the run was started with."
        )


def fingerprints(folder: Path) -> dict[str, list[int]]:
    """Size in bytes and CRC-32 of every file below, by path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): [path.stat().st_size, crc32(path)] for path in files}


def crc32(path: Path) -> int:
    """CRC-32 of a file."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
    return value


def check_files(folder: Path) -> None:
    """Compare every file with what was written.

    Raises:
        CheckpointError: one is missing or differs.
    """
    try:
        expected: dict[str, list[int]] = json.loads((folder / FILES).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} is no complete checkpoint: {error}. {REMEDY}") from error
    for name, (size, crc) in expected.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing. {REMEDY}")
        if path.stat().st_size != size or crc32(path) != crc:
            raise CheckpointError(f"{path} is damaged: it is not what was written ({size} bytes, CRC {crc:08x}). {REMEDY}")
