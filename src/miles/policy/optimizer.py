"""AdamW, its learning-rate schedule, whose horizon is known before it is built, and the gradient that it is given."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW, Optimizer

from miles.config.options.optimizer import OptimizerOptions
from miles.errors import NotFiniteError, PolicyError
from miles.policy.sharding import whole


def build_optimizer(parameters: Iterable[nn.Parameter], options: OptimizerOptions) -> AdamW:
    """AdamW over the parameters that are trained; fused, one kernel for all of them."""
    return AdamW(
        [parameter for parameter in parameters if parameter.requires_grad],
        lr=options.lr,
        betas=(options.adam_beta1, options.adam_beta2),
        eps=options.adam_eps,
        weight_decay=options.weight_decay,
        fused=True,
    )


def build_schedule(optimizer: Optimizer, options: OptimizerOptions, num_steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """The schedule over ``num_steps`` optimiser steps: linear warm-up from 0, then constant, linear or cosine to ``min_lr``.

    Raises:
        PolicyError: the warm-up is as long as the run, or ``min_lr`` is not below ``lr``.
    """
    from transformers import optimization

    warmup, decays = options.lr_warmup_iters, options.lr_decay_style != "constant"
    if warmup and warmup >= num_steps:
        raise PolicyError(f"lr_warmup_iters = {warmup}, but the run has {num_steps} optimiser steps. Lower --lr-warmup-iters.")
    if decays and options.min_lr >= options.lr:
        raise PolicyError(f"min_lr = {options.min_lr:g} is not below lr = {options.lr:g}, to decay from. Lower --min-lr.")
    schedule: Any
    if options.lr_decay_style == "constant":
        schedule = optimization.get_constant_schedule_with_warmup(optimizer, warmup)
    elif options.lr_decay_style == "linear":
        schedule = optimization.get_polynomial_decay_schedule_with_warmup(
            optimizer, warmup, num_steps, lr_end=options.min_lr, power=1.0
        )
    else:
        schedule = optimization.get_cosine_with_min_lr_schedule_with_warmup(optimizer, warmup, num_steps, min_lr=options.min_lr)
    return schedule  # type: ignore[no-any-return]


def clip_gradient(model: nn.Module, limit: float, loss: float, where: str) -> float:
    """Clip the gradient to ``limit`` and return its norm before, over all ranks.

    Args:
        model: with gradients.
        limit: largest norm.
        loss: that the gradient is of, and
        where: in the run it was taken; both for the error.

    Raises:
        NotFiniteError: the loss or the norm is not finite.
    """
    norm = whole(get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
    if not math.isfinite(loss) or not math.isfinite(norm):
        raise NotFiniteError(
            f"{where}: the loss is {loss:g} and the gradient norm {float(norm):g}; the step was not taken and the weights "
            "are unchanged. Lower --lr or --clip-grad, and look at the rewards and log-probs of this rollout."
        )
    clip_grads_with_norm_(model.parameters(), limit, norm)
    return float(norm)


def zero_gradients(model: nn.Module) -> None:
    """Give every trained parameter a zero gradient, so that the optimiser moves all of them at every step."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
        elif parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
