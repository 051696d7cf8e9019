"""LoRA adapters as files in peft's format: the policy writes them, engines read them, and both add them to weights in one way."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from miles.errors import EngineError

ADAPTER_FILE, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
UNSERVED = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias")


@dataclass(frozen=True, slots=True)
class Factors:
    """What is added to one weight: scaling · up @ down; up [out, rank], down [rank, in]."""

    up: Tensor
    down: Tensor
    scaling: float

    def update(self) -> Tensor:
        """[out, in]."""
        return self.scaling * (self.up @ self.down)


def read_adapter(folder: Path) -> Mapping[str, Factors]:
    """What a folder's adapter adds, by the name of the weight.

    Raises:
        EngineError: it cannot be read, or is of another kind than plain LoRA.
    """
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text())
        tensors = load_file(folder / ADAPTER_FILE)
        scaling = config["lora_alpha"] / config["r"]
        unserved = [name for name in UNSERVED if config.get(name)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise EngineError(f"the adapter in {folder} cannot be read: {error}.") from error
    if unserved:
        raise EngineError(f"the adapter in {folder} is no plain LoRA: it has {', '.join(unserved)}.")
    found = {}
    for name, down in tensors.items():
        if not name.endswith(DOWN):
            continue
        up = tensors.get(name.removesuffix(DOWN) + UP)
        if up is None:
            raise EngineError(f"the adapter in {folder} has {name} without its other factor.")
        found[f"{name.removeprefix(PREFIX).removesuffix(DOWN)}.weight"] = Factors(up, down, scaling)
    if 2 * len(found) != len(tensors):
        raise EngineError(f"the adapter in {folder} holds tensors that are no factor of a weight.")
    return found
