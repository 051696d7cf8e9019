"""A model spread over ranks (FSDP2): each rank owns a slice of every parameter and gathers one layer at a time.

Gradients are summed and not averaged: the loss of every rank is its part of one global number.
"""

from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from miles.errors import PolicyError
from miles.policy.model import PolicyModel


def shard_model(model: PolicyModel, mesh: Any) -> None:
    """Spread the parameters over the mesh, in place; one unit for each decoder layer and one for the rest.

    Raises:
        PolicyError: the decoder has no list of layers to spread.
    """
    for layer in layers_of(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)  # a pass without a gradient must leave slices behind
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo multiplies nothing on the way


def layers_of(model: PolicyModel) -> list[nn.Module]:
    """The decoder's layers."""
    layers = getattr(model.causal_lm.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        kind = type(model.causal_lm).__name__
        raise PolicyError(f"{kind} has no list of layers to spread over ranks. Train it with --actor-num-gpus-per-node 1.")
    return list(layers)


def whole(tensor: Tensor) -> Tensor:
    """The tensor of all ranks together; every rank must call it, in the same order."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
