"""New weights into the running model: checked first, then copied."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from miles.errors import EngineError

NAMES_SHOWN = 5


def read_weights(folder: str) -> dict[str, Tensor]:
    """All tensors of a folder, by name.

    Raises:
        EngineError: no such folder, no safetensors in it, or a damaged file.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise EngineError(f"{folder} holds no *.safetensors file; the weights stay as they were.")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors.update(load_file(file))
        except (SafetensorError, OSError) as error:
            raise EngineError(f"{file} cannot be read ({error}); the weights stay as they were.") from error
    return tensors


def parameters_by_name(network: Any) -> dict[str, list[str]]:
    """Every parameter of a model under its first name, with all its names (tied parameters have several)."""
    names: dict[int, list[str]] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {group[0]: group for group in names.values()}


def first_names(network: Any) -> dict[str, str]:
    """Every name of a parameter → the first of its names."""
    return {name: first for first, group in parameters_by_name(network).items() for name in group}


def check_weights(network: Any, tensors: Mapping[str, Tensor], source: str, *, is_whole: bool = True) -> dict[str, Tensor]:
    """The tensor for every parameter name, or for those that a bucket brings.

    Args:
        network: the model that will take them.
        tensors: by name, any float type; of tied parameters one name is enough.
        source: where they came from, for the error.
        is_whole: all parameters must be there.

    Raises:
        EngineError: a tensor is missing, unknown or of another shape; names each.
    """
    groups = parameters_by_name(network)
    chosen = {first: next((tensors[n] for n in group if n in tensors), None) for first, group in groups.items()}
    known = {name for group in groups.values() for name in group}
    problems = _listed("missing", [name for name, tensor in chosen.items() if tensor is None]) if is_whole else []
    problems += _listed("unknown", sorted(set(tensors) - known))
    problems += _listed("of another shape", _misshapen(network, chosen))
    if problems:
        raise EngineError(f"{source} does not fit the model: {'; '.join(problems)}. The weights stay as they were.")
    return {name: tensor for name, tensor in chosen.items() if tensor is not None}


def _misshapen(network: Any, chosen: Mapping[str, Tensor | None]) -> list[str]:
    wrong = []
    for name, tensor in chosen.items():
        wanted = tuple(network.get_parameter(name).shape)
        if tensor is not None and tuple(tensor.shape) != wanted:
            wrong.append(f"{name} {tuple(tensor.shape)} instead of {wanted}")
    return wrong


def _listed(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return [f"{what}: {', '.join(names[:NAMES_SHOWN])}{more}"]


@torch.no_grad()
def copy_weights(network: Any, checked: Mapping[str, Tensor]) -> None:
    """Copy checked tensors into the model's own, which keep their place in memory."""
    for name, tensor in checked.items():
        network.get_parameter(name).copy_(tensor)
