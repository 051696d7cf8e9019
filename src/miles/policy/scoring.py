"""Numbers for the tokens of a rollout from forward passes without a gradient."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from miles.policy.batch import TrainBatch
from miles.policy.collate import ForwardInput
from miles.policy.memory import naming_micro_batch
from miles.policy.model import DecoderModel


def over_tokens(
    batch: TrainBatch, parts: Iterable[ForwardInput], model: DecoderModel, of_part: Callable[[ForwardInput], Tensor]
) -> Tensor:
    """[response tokens]: what ``of_part`` says of the tokens in ``parts``, 0 for all others; on the model's device.

    Raises:
        PolicyError: a forward pass runs out of memory.
    """
    found = torch.zeros(len(batch.trained), dtype=next(model.parameters()).dtype, device=model.device)
    with torch.no_grad():
        for part in (part.to(model.device) for part in parts):
            with naming_micro_batch(part):
                found[part.response_index] = of_part(part)
    return found
