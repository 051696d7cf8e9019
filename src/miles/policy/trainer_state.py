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
from miles.policy.critic import Critic
from miles.policy.ranks import OneRank, Ranks
from miles.policy.trainer import Trainer

MODEL, REFERENCE, RANDOM = "model/", "reference/", "random/"
NOBODY = "torch.distributed is disabled, unavailable or uninitialized"
CRITIC = "critic."
Tensors = dict[str, Tensor]
Owner = Trainer | Critic


def trained(owner: Owner) -> Iterator[tuple[str, nn.Parameter, Optimizer]]:
    """Every parameter of its own by name, a critic's as ``critic.…``, and the optimiser that moves it."""
    prefix = CRITIC if isinstance(owner, Critic) else ""
    yield from ((prefix + name, parameter, owner.optimizer) for name, parameter in owner.model.named_parameters())


def model_tensors(owner: Owner) -> Tensors:
    """The weights that are trained by name, this rank's slices of them."""
    return {MODEL + name: parameter.detach() for name, parameter, _ in trained(owner) if parameter.requires_grad}


def reference_tensors(trainer: Trainer) -> Tensors:
    """The reference's weights by name, where they are not those of a folder that stays."""
    if trainer.reference is None or trainer.reference.interval is None:
        return {}
    return {REFERENCE + name: tensor.detach() for name, tensor in trainer.reference.model.named_parameters()}


def moments(owner: Owner) -> Tensors:
    """The optimiser's state of each weight; empty before its first step."""
    return {
        f"{kind}/{name}": value
        for name, parameter, optimizer in trained(owner)
        for kind, value in optimizer.state.get(parameter, {}).items()
    }


def write_tensors(owner: Owner, folder: Path) -> None:
    """Write all of them; every rank must call it with the same folder.

    Raises:
        OSError: the folder cannot be written.
    """
    try:
        with quietly():
            save(saved_tensors(owner), checkpoint_id=folder, no_dist=alone(owner.ranks))
    except CheckpointException as error:  # holds the failure of every rank
        raise OSError("; ".join(f"rank {rank}: {failure[0]}" for rank, failure in error.failures.items())) from error


def begin_writing(owner: Owner, folder: Path) -> "Future[Any]":
    """Copy all of them into host memory and write them from there, in a thread; every rank must call it.

    The ranks talk about it in a group of their own, so that nothing they say while training comes between.
    """
    warnings.filterwarnings("ignore", message=NOBODY)  # for good: it is said later, in the thread
    writing = async_save(
        saved_tensors(owner),
        checkpoint_id=folder,
        process_group=owner.ranks.writing_group(),
        no_dist=alone(owner.ranks),
    )
    return writing if isinstance(writing, Future) else writing.upload_completion


def saved_tensors(owner: Owner) -> dict[str, Any]:
    """Everything that is written, this rank's slices of it; a critic draws nothing and has no random state."""
    own = model_tensors(owner) | moments(owner)
    if isinstance(owner, Critic):
        return own
    random = {f"{RANDOM}{owner.ranks.index}": torch.get_rng_state()}
    if torch.cuda.is_available():
        random[f"{RANDOM}cuda/{owner.ranks.index}"] = torch.cuda.get_rng_state()
    beside = {} if owner.critic is None else saved_tensors(owner.critic)
    return own | beside | reference_tensors(owner) | random


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


def read_tensors(owner: Owner, folder: Path) -> Tensors:
    """The rank's slices of everything in the folder that its owner has a place for; nothing is changed yet.

    Raises:
        CheckpointError: the weights differ from the owner's in name or shape.
    """
    stored = FileSystemReader(folder).read_metadata().state_dict_metadata
    own = model_tensors(owner)
    sizes = {name: data.size for name, data in stored.items() if isinstance(data, TensorStorageMetadata)}
    theirs = {name: size for name, size in sizes.items() if is_weight_of(owner, name)}
    refuse_other_model(folder, theirs, own)
    wanted: dict[str, Any] = {name: torch.empty_like(tensor) for name, tensor in own.items()}
    for name in stored:
        kind, _, rest = name.partition("/")
        if MODEL + rest in own:
            wanted[name] = torch.zeros((), dtype=torch.float32) if kind == "step" else torch.empty_like(own[MODEL + rest])
    random = f"{RANDOM}{owner.ranks.index}"
    if random in stored and isinstance(owner, Trainer):
        wanted[random] = torch.get_rng_state()
    with quietly():
        load(wanted, checkpoint_id=folder, no_dist=alone(owner.ranks))
    return wanted


def is_weight_of(owner: Owner, name: str) -> bool:
    """Whether a stored tensor is a weight of its; a critic that is not needed any more is left where it is."""
    return name.startswith(MODEL) and name.startswith(MODEL + CRITIC) == isinstance(owner, Critic)


def put_back(owner: Owner, tensors: Tensors, *, anew: bool = False) -> None:
    """Give the owner the weights, moments, reference and random state that were read; only the first two if ``anew``."""
    reference = reference_tensors(owner) if isinstance(owner, Trainer) and not anew else {}
    with torch.no_grad():
        for name, tensor in (model_tensors(owner) | reference).items():
            tensor.copy_(tensors[name])
    kept: dict[str, Tensors] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        if kind not in ("model", "reference"):
            kept.setdefault(name, {})[kind] = value
    for name, parameter, optimizer in trained(owner):
        optimizer.state.pop(parameter, None)
        if name in kept:
            optimizer.state[parameter] = kept[name]
    random = tensors.get(f"{RANDOM}{owner.ranks.index}")
    if random is not None and not anew:
        torch.set_rng_state(random)


def refuse_other_model(folder: Path, saved: dict[str, Any], own: Tensors) -> None:
    """Refuse weights whose names or shapes are not the owner's."""
    if not saved and any(name.startswith(MODEL + CRITIC) for name in own):
        raise CheckpointError(
            f"the checkpoint {folder.parent.parent} has no critic: it was not written under --advantage-estimator ppo. "
            "Resume with the estimator that the run was started with, or start anew from its `hf` folder."
        )
    other = sorted(saved.keys() ^ own.keys()) or [name for name in own if saved[name] != own[name].shape]
    if other:
        name = other[0].removeprefix(MODEL).removeprefix(CRITIC).removeprefix("causal_lm.")
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
