"""The policy leaves its device while the engines sample there, and comes back to train."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from miles.policy.trainer import Trainer


def move_trainer(trainer: "Trainer", device: str) -> None:
    """Move weights, gradients, reference, a critic here and the optimisers' moments; what they held is free when it returns."""
    if trainer.reference is not None:
        trainer.reference.model.to(device)
    critics = [(trainer.critic.model, trainer.critic.optimizer)] if trainer.critic else []
    for model, optimizer in ((trainer.model, trainer.optimizer), *critics):
        model.to(device)
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dim():
                    state[name] = value.to(device)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
