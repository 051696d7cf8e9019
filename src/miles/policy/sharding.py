"""A model spread over ranks (FSDP2): each rank owns a slice of every parameter and gathers one layer at a time.

Gradients are summed and not averaged: the loss of every rank is its part of one global number. A forward pass in bfloat16 works
on copies that are cast as a layer is gathered; the slices, their gradients and the optimiser's moments stay float32.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from miles.config.commands import AnyConfig
from miles.config.options.model import Dtype
from miles.errors import PolicyError
from miles.policy.model import DecoderModel


def shard_model(model: DecoderModel, mesh: Any, *, dtype: Dtype = "float32", offload: bool = False) -> None:
    """Spread the parameters over the mesh, in place; one unit for each decoder layer and one for the rest.

    dtype: of the forward and backward pass; ``float32`` leaves the model's own.
    offload: slices, gradients and moments live in host memory, where the optimiser steps; a layer is copied to the device
        when it is needed.

    Raises:
        PolicyError: the decoder has no list of layers to spread.
    """
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    placed: dict[str, Any] = {"mesh": mesh, "mp_policy": half if dtype == "bfloat16" else MixedPrecisionPolicy()}
    if offload:
        model.runs_on = torch.device(mesh.device_type)
        placed["offload_policy"] = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    for layer in layers_of(model):
        fully_shard(layer, **placed)
    fully_shard(model, **placed, reshard_after_forward=True)  # a pass without a gradient must leave slices behind
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo multiplies nothing on the way


def loads_on(config: AnyConfig, device: str) -> str:
    """Where a model is read before it is spread: what is offloaded goes layer by layer, so that it need not fit the device."""
    return "cpu" if config.optimizer.optimizer_cpu_offload else device


def layers_of(model: DecoderModel) -> list[nn.Module]:
    """The decoder's layers."""
    layers = getattr(model.causal_lm.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        kind = type(model.causal_lm).__name__
        raise PolicyError(f"{kind} has no list of layers to spread over ranks. Train it with --actor-num-gpus-per-node 1.")
    return list(layers)


def whole(tensor: Tensor) -> Tensor:
    """The tensor of all ranks together; every rank must call it, in the same order."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
