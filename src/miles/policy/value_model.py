"""The model of PPO's critic: a decoder under a head of one number."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from miles.policy.collate import ForwardInput
from miles.policy.model import DecoderModel, read_causal_lm
from miles.policy.vocab_chunks import at_least_float32


class ValueModel(DecoderModel):
    """A causal LM whose head over the vocabulary has given way to one over a single number.

    The new head starts at zero, so that the first values are 0 whatever the hidden states.
    """

    def __init__(self, causal_lm: Any) -> None:
        super().__init__(causal_lm)
        causal_lm.set_output_embeddings(nn.Identity())
        some = next(causal_lm.parameters())
        self.value_head = nn.Linear(self.hidden_size, 1, dtype=some.dtype, device=some.device)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, batch: ForwardInput) -> Tensor:
        """[tokens], at least float32: value of the text before each token of the batch."""
        values: Tensor = self.value_head(self.hidden(batch)[batch.source])[:, 0]
        return values.to(at_least_float32(values.dtype), copy=True)  # FSDP2 takes no views


def load_value_model(folder: Path, *, device: str, gradient_checkpointing: bool) -> ValueModel:
    """A value model over the decoder in an HF folder, in float32, ready to train.

    Raises:
        PolicyError: no folder, or no readable model in it.
    """
    causal_lm = read_causal_lm(folder).to(torch.device(device))
    if gradient_checkpointing:
        causal_lm.gradient_checkpointing_enable({"use_reentrant": False})
    return ValueModel(causal_lm)
