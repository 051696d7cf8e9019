"""A transformers causal language model in float32 or bfloat16, ready for the slot cache."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from miles.engines.embedded.options import Dtype
from miles.engines.embedded.slots import ATTENTION_NAME, Packed, SlotCache
from miles.errors import EngineError

SUPPORTED_MODEL_TYPES = ("llama", "qwen2", "qwen3")
BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the engine needs of a model folder.

    end_ids: tokens that end an answer, from generation config, config and tokenizer.
    context_len: the longest prompt plus answer the model takes.
    """

    path: str
    network: Any
    config: Any
    tokenizer: Any
    end_ids: frozenset[int]
    context_len: int

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self.config.vocab_size)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and cache."""
        dtype: torch.dtype = self.network.dtype
        return dtype

    def new_cache(self, num_slots: int, context_len: int) -> SlotCache:
        """An empty cache for this model.

        Raises:
            EngineError: it would not fit into memory.
        """
        config = self.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, num_slots, config.num_key_value_heads, context_len, head_dim)
        needed, free = 2 * math.prod(shape) * self.dtype.itemsize, psutil.virtual_memory().available
        if needed > free:
            raise EngineError(
                f"The KV cache of {num_slots} slots × {context_len} tokens needs {needed / 2**30:.1f} GiB, "
                f"{free / 2**30:.1f} GiB are free. Use fewer slots or a shorter context."
            )
        return SlotCache(*shape, dtype=self.dtype)

    @torch.inference_mode()
    def hidden_states(
        self, input_ids: Tensor, positions: Tensor, mask: Tensor | None, cache: SlotCache, packed: Packed | None = None
    ) -> Tensor:
        """Last hidden states [batch, tokens, hidden] of ``input_ids`` [batch, tokens] at ``positions`` (same shape).

        packed: how the only row of the batch is cut into rows, which ``mask`` and the plan of ``cache`` are for.
        """
        out = self.network.get_decoder()(
            input_ids=input_ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, packed=packed
        )
        states: Tensor = out.last_hidden_state
        return states

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[n, hidden] to [n, vocabulary], float32."""
        logits: Tensor = self.network.get_output_embeddings()(hidden)
        return logits.float()


def load_model(path: str, dtype: Dtype = "float32") -> LoadedModel:
    """Read a Hugging Face model folder, in a number type.

    Raises:
        EngineError: not a folder, or a kind of model that this engine was not tested with.
    """
    if not (Path(path) / "config.json").is_file():
        raise EngineError(f"{path} holds no config.json; give a Hugging Face model folder as model path.")
    config = AutoConfig.from_pretrained(path)
    _refuse_unsupported(path, config)
    kind = getattr(torch, dtype)
    network = AutoModelForCausalLM.from_pretrained(path, dtype=kind, attn_implementation=ATTENTION_NAME).eval()
    network.requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(path)
    return LoadedModel(
        path=path,
        network=network,
        config=network.config,
        tokenizer=tokenizer,
        end_ids=_end_ids(config, network.generation_config, tokenizer),
        context_len=int(config.max_position_embeddings),
    )


def _refuse_unsupported(path: str, config: Any) -> None:
    supported = ", ".join(SUPPORTED_MODEL_TYPES)
    if config.model_type not in SUPPORTED_MODEL_TYPES:
        raise EngineError(
            f"{path}: model type {config.model_type!r} is not supported by the embedded engine (supported: {supported}). "
            "Use one of these or the sglang engine."
        )
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise EngineError(f"{path}: sliding-window attention is not supported by the embedded engine. Use the sglang engine.")
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope_type in BATCH_DEPENDENT_ROPE:
        raise EngineError(
            f"{path}: rope type {rope_type!r} changes with the longest row of a batch, so that rows would disturb each other. "
            "Use the sglang engine."
        )


def _end_ids(config: Any, generation_config: GenerationConfig | None, tokenizer: Any) -> frozenset[int]:
    """Every id that any of the three names as end of text, as SGLang collects them."""
    ids: set[int] = set()
    for source in (config, generation_config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        if value is not None:
            ids.update(value if isinstance(value, Iterable) else [value])
    return frozenset(ids)
