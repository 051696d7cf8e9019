"""What only a resumed run needs, as tensors by name: masters, optimiser moments, random state.

``torch.distributed.checkpoint`` writes each rank's slices and cuts them anew for any other number of ranks.
"""

import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.optim import Optimizer

from miles.errors import CheckpointError
from miles.policy.ranks import OneRank, Ranks
from miles.policy.trainer import Trainer

MODEL, REFERENCE, RANDOM = "model/", "reference/", "random/"
NOBODY = "torch.distributed is disabled, unavailable or uninitialized"
CRITIC = "critic."
Tensors = dict[str, Tensor]


def trained(trainer: Trainer) -> Iterator[tuple[str, nn.Parameter, Optimizer]]:
    """Every parameter by name, and the optimiser that moves it: the policy's, then the critic's as ``critic.…``."""
    yield from ((name, parameter, trainer.optimizer) for name, parameter in trainer.model.named_parameters())
    if trainer.critic is not None:
        own = trainer.critic
        yield from ((CRITIC + name, parameter, own.optimizer) for name, parameter in own.model.named_parameters())


def model_tensors(trainer: Trainer) -> Tensors:
    """The weights that are trained by name, this rank's slices of them."""
    return {MODEL + name: parameter.detach() for name, parameter, _ in trained(trainer) if parameter.requires_grad}


def reference_tensors(trainer: Trainer) -> Tensors:
    """The reference's weights by name, where they are not those of a folder that stays."""
    if trainer.reference is None or trainer.reference.interval is None:
        return {}
    return {REFERENCE + name: tensor.detach() for name, tensor in trainer.reference.model.named_parameters()}


def moments(trainer: Trainer) -> Tensors:
    """The optimiser's state of each weight; empty before its first step."""
    return {
        f"{kind}/{name}": value
        for name, parameter, optimizer in trained(trainer)
        for kind, value in optimizer.state.get(parameter, {}).items()
    }


def write_tensors(trainer: Trainer, folder: Path) -> None:
    """Write all of them; every rank must call it with the same folder.

    Raises:
        OSError: the folder cannot be written.
    """
    try:
        with quietly():
            save(saved_tensors(trainer), checkpoint_id=folder, no_dist=alone(trainer.ranks))
    except CheckpointException as error:  # holds the failure of every rank
        raise OSError("; ".join(f"rank {rank}: {failure[0]}" for rank, failure in error.failures.items())) from error


def begin_writing(trainer: Trainer, folder: Path) -> "Future[Any]":
    """Copy all of them into host memory and write them from there, in a thread; every rank must call it.

    The ranks talk about it in a group of their own, so that nothing they say while training comes between.
    """
    warnings.filterwarnings("ignore", message=NOBODY)  # for good: it is said later, in the thread
    writing = async_save(
        saved_tensors(trainer),
        checkpoint_id=folder,
        process_group=trainer.ranks.writing_group(),
        no_dist=alone(trainer.ranks),
    )
    return writing if isinstance(writing, Future) else writing.upload_completion


def saved_tensors(trainer: Trainer) -> dict[str, Any]:
    """Everything that is written, this rank's slices of it."""
    random = {f"{RANDOM}{trainer.ranks.index}": torch.get_rng_state()}
    if torch.cuda.is_available():
        random[f"{RANDOM}cuda/{trainer.ranks.index}"] = torch.cuda.get_rng_state()
    return model_tensors(trainer) | moments(trainer) | reference_tensors(trainer) | random


def stored_names(folder: Path) -> Tensors:
    """Shape and type of every tensor in a folder, without its numbers."""
    stored = FileSystemReader(folder).read_metadata().state_dict_metadata
    tensors = {name: data for name, data in stored.items() if isinstance(data, TensorStorageMetadata)}
    return {name: torch.empty(data.size, dtype=data.properties.dtype, device="meta") for name, data in tensors.items()}


def read_stored(folder: Path, name: str, form: Tensor) -> Tensor:
    """One whole tensor out of the slices of all ranks."""
    wanted: dict[str, Any] = {name: torch.empty_like(form, device="cpu")}
    with quietly():
        load(wanted, checkpoint_id=folder, no_dist=True)
    return wanted[name]  # type: ignore[no-any-return]


def read_tensors(trainer: Trainer, folder: Path) -> Tensors:
    """The rank's slices of everything in the folder that the trainer has a place for; nothing is changed yet.

    Raises:
        CheckpointError: the weights differ from the trainer's in name or shape.
    """
    stored = FileSystemReader(folder).read_metadata().state_dict_metadata
    own = model_tensors(trainer)
    sizes = {name: data.size for name, data in stored.items() if isinstance(data, TensorStorageMetadata)}
    unread = RANDOM if trainer.critic else MODEL + CRITIC  # a critic that is not needed any more is left where it is
    refuse_other_model(folder, {n: size for n, size in sizes.items() if n.startswith(MODEL) and not n.startswith(unread)}, own)
    wanted: dict[str, Any] = {name: torch.empty_like(tensor) for name, tensor in own.items()}
    for name in stored:
        kind, _, rest = name.partition("/")
        if MODEL + rest in own:
            wanted[name] = torch.zeros((), dtype=torch.float32) if kind == "step" else torch.empty_like(own[MODEL + rest])
    random = f"{RANDOM}{trainer.ranks.index}"
    if random in stored:
        wanted[random] = torch.get_rng_state()
    with quietly():
        load(wanted, checkpoint_id=folder, no_dist=alone(trainer.ranks))
    return wanted


def put_back(trainer: Trainer, tensors: Tensors, *, anew: bool = False) -> None:
    """Give the trainer the weights, moments, reference and random state that were read; only the first two if ``anew``."""
    with torch.no_grad():
        for name, tensor in (model_tensors(trainer) | ({} if anew else reference_tensors(trainer))).items():
            tensor.copy_(tensors[name])
    kept: dict[str, Tensors] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        if kind not in ("model", "reference"):
            kept.setdefault(name, {})[kind] = value
    for name, parameter, optimizer in trained(trainer):
        optimizer.state.pop(parameter, None)
        if name in kept:
            optimizer.state[parameter] = kept[name]
    random = tensors.get(f"{RANDOM}{trainer.ranks.index}")
    if random is not None and not anew:
        torch.set_rng_state(random)


def refuse_other_model(folder: Path, saved: dict[str, Any], own: Tensors) -> None:
    """Refuse weights whose names or shapes are not the trainer's."""
    if any(name.startswith(MODEL + CRITIC) for name in own) and not any(name.startswith(MODEL + CRITIC) for name in saved):
        raise CheckpointError(
            f"the checkpoint {folder.parent.parent} has no critic: it was not written under --advantage-estimator ppo. "
            "Resume with the estimator that the run was started with, or start anew from its `hf` folder."
        )
    other = sorted(saved.keys() ^ own.keys()) or [name for name in own if saved[name] != own[name].shape]
    if other:
        name = other[0].removeprefix(f"{MODEL}causal_lm.")
        raise CheckpointError(
            f"the checkpoint {folder.parent.parent} is of another model: {name} and {len(other) - 1} more weights differ in name "
            "or shape. Resume with the --hf-checkpoint that the run was started with."
        )


@contextmanager
def quietly() -> Iterator[None]:
    """Without the remark that one rank has nobody to agree with, which is what it was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=NOBODY)
        yield


def alone(ranks: Ranks) -> bool:
    """Whether there is no other rank to agree with."""
    return isinstance(ranks, OneRank)
