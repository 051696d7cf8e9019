"""Checkpoints: an HF folder that others can use, and beside it what only a resumed run needs.

<folder>/hf/                  config, tokenizer, safetensors; loadable by transformers. With LoRA the adapters, as peft has them
<folder>/trainer/tensors/     every rank's slices of weights and moments; loadable with another number of ranks
<folder>/trainer/state.pt     schedule, step counter
<folder>/critic/              the same of a critic on ranks of its own; one on the policy's ranks is among their tensors
<folder>/trainer/files.json   size and CRC-32 of every file, so that damage is found before anything is loaded
"""

import json
import shutil
import zlib
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from miles.errors import CheckpointError
from miles.policy.adapters import has_adapters, write_adapters
from miles.policy.critic import Critic
from miles.policy.export import write_weights
from miles.policy.folders import written_aside
from miles.policy.trainer import Trainer
from miles.policy.trainer_state import put_back, read_tensors, write_tensors

HF, TENSORS, STATE, FILES = "hf", "trainer/tensors", "trainer/state.pt", "trainer/files.json"
CRITIC, CRITIC_TENSORS, CRITIC_STATE = "critic", "critic/tensors", "critic/state.pt"
FORMAT = 2
WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})
CHUNK_BYTES = 1 << 20
REMEDY = "Resume from an older checkpoint (the `latest` file beside it names the one in use), or start anew."


def save_checkpoint(trainer: Trainer, folder: Path, source: Path, critic_part: Path | None = None) -> None:
    """Write a checkpoint aside, force it to the disk, then rename it; a checkpoint that stood there survives a failure.

    Args:
        trainer: what is saved; every rank must call.
        folder: the checkpoint, in a file system that all ranks see.
        source: the HF folder the run started from; tokenizer and whatever else is no weight are copied from it.
        critic_part: what a critic on ranks of its own has written, in the same file system; it becomes part of the checkpoint.

    Raises:
        CheckpointError: it could not be written.
    """
    ranks = trainer.ranks
    try:
        with written_aside(folder, durable=True) if ranks.index == 0 else nullcontext() as aside:
            shared = ranks.from_first(aside)
            if aside is not None:
                copy_companions(source, aside / HF)
                (aside / TENSORS).mkdir(parents=True)
            write_hf(trainer.model.causal_lm, aside and aside / HF)
            write_tensors(trainer, Path(shared or folder) / TENSORS)
            if aside is not None:
                complete(aside, trainer_state(trainer), critic_part)
        ranks.wait()
    except (OSError, RuntimeError, SafetensorError) as error:
        raise not_written(folder, error) from error


def complete(aside: Path, state: Mapping[str, Any], critic_part: Path | None) -> None:
    """The last that is written: what is no tensor, what the critic gives, and the fingerprints of everything."""
    torch.save(state, aside / STATE)
    if critic_part is not None:
        critic_part.rename(aside / CRITIC)
    (aside / FILES).write_text(json.dumps(fingerprints(aside)))


def not_written(folder: Path, error: BaseException) -> CheckpointError:
    """What the user is told of a checkpoint that could not be written."""
    return CheckpointError(
        f"the checkpoint {folder} could not be written: {error}. Nothing that was there is lost. "
        f"Free disk space ({free_space(folder)}) or give another folder with --save."
    )


def free_space(folder: Path) -> str:
    """How much room there is, in words; a torch error of a full disk does not say that it is one."""
    place = next(parent for parent in folder.absolute().parents if parent.exists())
    return f"{shutil.disk_usage(place).free / 2**20:,.0f} MiB are free in {place}"


def write_hf(
    causal_lm: Any,
    folder: Path | None,
    buckets: Iterable[dict[str, Tensor]] | None = None,
    adapters: Mapping[str, Tensor] | None = None,
) -> None:
    """The weights that were trained, beside what was copied; None on ranks that only take part in the gathering.

    buckets, adapters: the weights, of a model without or with adapters; by default those that it has now.
    """
    if not has_adapters(causal_lm):
        write_weights(causal_lm, folder, buckets)
        return
    write_adapters(causal_lm, folder, adapters)
    if folder is not None:
        (folder / "config.json").unlink(missing_ok=True)  # so that nobody takes the folder for a whole model


def copy_companions(source: Path, target: Path) -> None:
    """Copy every file beside the weights: tokenizer, chat template, generation config."""
    target.mkdir(exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix not in WEIGHT_SUFFIXES and not path.name.endswith(".index.json"):
            shutil.copyfile(path, target / path.name)


def trainer_state(trainer: Trainer) -> dict[str, Any]:
    """Everything that is the same on all ranks and no tensor."""
    return {
        "format": FORMAT,
        "num_optimizer_steps": trainer.num_optimizer_steps,
        "schedule_steps": trainer.schedule.last_epoch,
        "critic_steps": None if trainer.critic is None else trainer.critic.schedule.last_epoch,
    }


def critic_state(critic: Critic) -> dict[str, Any]:
    """The same of a critic on ranks of its own."""
    return {"format": FORMAT, "critic_steps": critic.schedule.last_epoch}


def load_checkpoint(trainer: Trainer, folder: Path, *, anew: bool = False) -> None:
    """Go on from a checkpoint; the trainer is changed only after all of it has been read and fits.

    anew: take weights and moments alone, for a run of its own: schedule, reference and random state stay as they are.

    Raises:
        CheckpointError: it is missing, damaged, or of another model.
    """
    damage = trainer.ranks.from_first(damage_of(folder) if trainer.ranks.index == 0 else "")
    if damage:
        raise CheckpointError(damage)
    state = read_state(folder)
    tensors = read_tensors(trainer, folder / TENSORS)
    if trainer.critic is not None:
        load_critic_state(trainer.critic, folder, anew=anew)
    put_back(trainer, tensors, anew=anew)
    if anew:
        return
    stand_at(trainer.schedule, state["schedule_steps"])
    trainer.num_optimizer_steps = state["num_optimizer_steps"]


def load_critic_state(critic: Critic, folder: Path, *, anew: bool = False) -> None:
    """The same for a critic, on whichever ranks it was when it was saved; damage is for the policy to find.

    Raises:
        CheckpointError: the checkpoint has no critic, or another one.
    """
    has_own = (folder / CRITIC).is_dir()
    steps = read_state(folder, CRITIC_STATE if has_own else STATE)["critic_steps"]
    put_back(critic, read_tensors(critic, folder / (CRITIC_TENSORS if has_own else TENSORS)), anew=anew)
    if not anew:
        stand_at(critic.schedule, steps)


def stand_at(schedule: LRScheduler, num_steps: int) -> None:
    """Let a schedule be where it is after ``num_steps``; its rates are those of this start's options, which may have changed."""
    if not isinstance(schedule, LambdaLR):
        raise CheckpointError(f"a schedule of kind {type(schedule).__name__} cannot be resumed.")
    schedule.last_epoch, schedule._step_count = num_steps, num_steps + 1
    rates = [base * factor(num_steps) for base, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
    for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule._last_lr = rates


def read_state(folder: Path, name: str = STATE) -> dict[str, Any]:
    """The part that is no tensor."""
    try:
        state: dict[str, Any] = torch.load(folder / name, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{folder / name} cannot be read: {error}. {REMEDY}") from error
    if state.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder / name} has format {state.get('format')}, this version of miles reads {FORMAT}. "
            f"Start anew with --hf-checkpoint {folder / HF}."
        )
    return state


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


def damage_of(folder: Path) -> str:
    """What differs from what was written, in a sentence; empty where nothing does."""
    try:
        expected: dict[str, list[int]] = json.loads((folder / FILES).read_text())
    except (OSError, ValueError) as error:
        return f"{folder} is no complete checkpoint: {error}. {REMEDY}"
    for name, (size, crc) in expected.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing. {REMEDY}"
        if path.stat().st_size != size or crc32(path) != crc:
            return f"{path} is damaged: it is not what was written ({size} bytes, CRC {crc:08x}). {REMEDY}"
    return ""
