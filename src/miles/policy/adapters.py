"""LoRA through peft: W′ = W + (alpha / rank) · B A, of which only A and B are trained.

engines ◄── W′, merged bucket by bucket      checkpoints ◄── A and B, in peft's format      reference ◄── W, adapters switched off
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from miles.config.options.lora import LoraOptions
from miles.engines.transfer.adapter import ADAPTER_FILE, Factors
from miles.errors import CheckpointError, PolicyError
from miles.policy.model import PolicyModel, read_causal_lm
from miles.policy.sharding import whole

ADAPTER = "default"
BASE, EVERY_LINEAR = ".base_layer", "all-linear"


def add_adapters(model: PolicyModel, options: LoraOptions, *, base: Path, seed: int) -> None:
    """Freeze the weights and put adapters beside them, where options ask for any; every rank draws the same ones.

    Args:
        model: the whole model, before it is spread over ranks.
        options: rank, scale and targets.
        base: the HF folder of the model, named in checkpoints.
        seed: of A; B begins at 0, so that the model is unchanged at first.

    Raises:
        PolicyError: no layer has one of the names given.
    """
    if options.lora_rank is None:
        return
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds to import

    adapters = LoraConfig(
        r=options.lora_rank,
        lora_alpha=2 * options.lora_rank if options.lora_alpha is None else options.lora_alpha,
        target_modules=list(options.lora_targets) or EVERY_LINEAR,
        task_type="CAUSAL_LM",
        base_model_name_or_path=str(base.absolute()),
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(adapters, model.causal_lm, ADAPTER)
        except ValueError as error:
            raise PolicyError(
                f"the adapters do not fit {type(model.causal_lm).__name__}: {str(error).splitlines()[0]} "
                "Give --lora-targets names of its linear layers, or leave it out."
            ) from error


def lora_layers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The layers with adapters, by name."""
    yield from ((name, layer) for name, layer in module.named_modules() if hasattr(layer, "lora_A"))


def has_adapters(causal_lm: Any) -> bool:
    """Whether the transformers model has adapters."""
    return bool(getattr(causal_lm, "peft_config", None))


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """The model as it was before it was trained, for as long as the block lasts."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    layers = [layer for _, layer in lora_layers(model)]
    for layer in layers:
        layer.enable_adapters(False)
    for parameter in trained:  # peft freezes them, too, and FSDP reads that once for good at its first pass
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def plain_state(causal_lm: Any) -> dict[str, Tensor]:
    """The state dictionary under the names of a model without adapters, and without these."""
    return {name.replace(BASE, ""): tensor for name, tensor in causal_lm.state_dict().items() if not is_adapter(name)}


def adapted_layers(causal_lm: Any) -> Mapping[str, Any]:
    """The layers whose update is to be added to a weight, by the weight's name."""
    return {f"{name}.weight": layer for name, layer in lora_layers(causal_lm)}


def is_adapter(name: str) -> bool:
    """Whether a weight is A or B of an adapter."""
    return name.endswith(f".{ADAPTER}.weight")


def update_of(layer: Any) -> Tensor:
    """[out, in]: what the adapter adds to the weight; every rank must call it."""
    up, down = (whole(part[ADAPTER].weight.detach()) for part in (layer.lora_B, layer.lora_A))
    return Factors(up, down, layer.scaling[ADAPTER]).update()


def gathered_adapters(causal_lm: Any) -> dict[str, Tensor]:
    """A and B of every adapter by name; every rank must call it."""
    return {name: whole(tensor.detach()) for name, tensor in causal_lm.named_parameters() if is_adapter(name)}


def write_adapters(causal_lm: Any, folder: Path | None, adapters: Mapping[str, Tensor] | None = None) -> None:
    """Write A and B in peft's format; None on ranks that only take part in the gathering.

    adapters: by name; by default those that the model has now.
    """
    given = gathered_adapters(causal_lm) if adapters is None else adapters
    if folder is not None:
        tensors = {f"base_model.model.{name.replace(f'.{ADAPTER}', '')}": t.contiguous() for name, t in given.items()}
        save_file(tensors, folder / ADAPTER_FILE, {"format": "pt"})
        causal_lm.peft_config[ADAPTER].save_pretrained(folder)


def merge_adapters(folder: Path) -> Any:
    """The transformers model that a folder of adapters names, with them merged into it.

    Raises:
        CheckpointError: adapters or model cannot be read.
    """
    from peft import LoraConfig, PeftModel

    try:
        config = LoraConfig.from_pretrained(folder)
        base = read_causal_lm(Path(config.base_model_name_or_path))
        return PeftModel.from_pretrained(base, folder, local_files_only=True).merge_and_unload()
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, PolicyError) as error:
        raise CheckpointError(
            f"the adapters in {folder} cannot be merged: {error}. They need the model they were trained beside, "
            "where adapter_config.json names it."
        ) from error
