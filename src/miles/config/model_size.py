"""The size of a model, from its ``config.json`` alone: a decoder with grouped-query attention and a gated MLP.

Counts every parameter of Llama, Qwen2, Qwen3 and Qwen3-MoE models as transformers builds them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NEEDED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
BIASED = frozenset({"qwen2"})  # query, key and value have biases whatever the file says
NORMED = frozenset({"qwen3", "qwen3_moe"})  # queries and keys are normed by head


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The numbers that memory follows from.

    parameters: all of them, tied ones once.
    queries, keys: width of all query heads, of all key heads; values are as wide as keys.
    mlp_width: width of the gated MLP that one token passes: of all its active experts.
    """

    parameters: int
    layers: int
    hidden: int
    vocabulary: int
    queries: int
    keys: int
    mlp_width: int

    @property
    def cache_values_per_token(self) -> int:
        """Numbers that one token keeps in a KV cache."""
        return 2 * self.layers * self.keys

    @property
    def kept_values_per_token(self) -> int:
        """Numbers that one token keeps in one layer for the backward pass.

        Inputs of both norms and of both projections, both residual sums (6 × hidden), queries and attention output,
        keys and values, and gate, up, activated gate and their product in the MLP; attention keeps no scores.
        """
        return 6 * self.hidden + 2 * self.queries + 2 * self.keys + 4 * self.mlp_width

    def adapter_parameters(self, rank: int, targets: Sequence[str]) -> int:
        """Parameters of LoRA adapters: rank × (in + out) of every layer that has one; ``targets`` empty means all.

        Of a mixture of experts the experts have none, so that this is an upper limit.
        """
        hidden, mlp = self.hidden, self.mlp_width
        sizes = (hidden + self.queries, hidden + self.keys, hidden + self.keys, self.queries + hidden, *3 * [hidden + mlp])
        adapted = [size for name, size in zip(PROJECTIONS, sizes, strict=True) if not targets or name in targets]
        return self.layers * rank * sum(adapted)


def model_size(config: Mapping[str, Any]) -> ModelSize | None:
    """The size of the model of a ``config.json``; None where that lacks a number or is of another kind."""
    text = config.get("text_config")
    config = text if isinstance(text, Mapping) else config
    if not all(isinstance(config.get(key), int) for key in NEEDED):
        return None
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    queries, keys = heads * head, (config.get("num_key_value_heads") or heads) * head
    mlp, width = _mlp(config, hidden)
    if mlp is None:
        return None
    kind = str(config.get("model_type"))
    attention = hidden * (2 * queries + 2 * keys)
    attention += queries + 2 * keys if kind in BIASED else 0
    attention += queries + 2 * keys + hidden if config.get("attention_bias") and kind not in BIASED else 0
    attention += 2 * head if kind in NORMED else 0
    embeddings = config["vocab_size"] * hidden * (1 if config.get("tie_word_embeddings") else 2)
    parameters = embeddings + layers * (attention + mlp + 2 * hidden) + hidden
    return ModelSize(parameters, layers, hidden, config["vocab_size"], queries, keys, width)


def _mlp(config: Mapping[str, Any], hidden: int) -> tuple[int | None, int]:
    """Parameters of one layer's MLP, router included, and the width that a token passes."""
    experts, width = config.get("num_experts"), config.get("moe_intermediate_size")
    if isinstance(experts, int) and isinstance(width, int):
        active = int(config.get("num_experts_per_tok") or 1)
        return experts * (3 * hidden * width + hidden), active * width
    width = config.get("intermediate_size")
    if not isinstance(width, int):
        return None, 0
    return 3 * hidden * width, width
