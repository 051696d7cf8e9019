"""The KV cache: allocated once, one slot per running request, the active ones always in front.

    keys, values of a layer: [num_slots, kv heads, context, head size]

Transformers models use it through ``SlotCache`` (a ``Cache``) and ``slot_attention`` (an attention function), so model
files work unmodified. The runner says with ``plan_prefill``, ``plan_tails`` and ``plan_decode`` which slots the next
forward pass is for.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.cache_utils import Cache

ATTENTION_NAME = "miles_slots"


class Packed(NamedTuple):
    """Rows of different lengths behind one another in one row of tokens, so that none of them is padded.

    row, place: [tokens], to which row a token belongs and at which place of it.
    token_at: [rows, longest], the token at a place of a row; places behind its end repeat its last token.
    """

    row: Tensor
    place: Tensor
    token_at: Tensor


def pack(lengths: Sequence[int]) -> Packed:
    """Rows of so many tokens each, all at least one."""
    sizes = torch.tensor(lengths)
    starts = sizes.cumsum(0) - sizes
    row = torch.repeat_interleave(sizes)
    token_at = starts[:, None] + torch.minimum(torch.arange(max(lengths)), sizes[:, None] - 1)
    return Packed(row, torch.arange(len(row)) - starts[row], token_at)


class SlotCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """Keys and values of all slots and layers.

    Zeroed at the start: a masked position has weight 0, but 0 × NaN is NaN.
    """

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        context_len: int,
        head_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(layers=[])
        self._kv = torch.zeros(num_layers, 2, num_slots, num_kv_heads, context_len, head_dim, dtype=dtype)
        self._rows: slice | Tensor = slice(0, 0)
        self._sources = torch.zeros(0, dtype=torch.int64)
        self._length = 0
        self._index: Tensor | None = None

    def plan_prefill(self, slots: Tensor, sources: Tensor) -> None:
        """The next forward pass computes sequences from position 0; ``slots[i]`` keeps what its row ``sources[i]`` gives."""
        self._rows, self._sources, self._index = slots, sources, None

    def plan_tails(self, slots: Tensor, packed: "Packed", positions: Tensor, length: int) -> None:
        """The next forward pass adds packed rows of tokens to these slots.

        Args:
            slots: [n] int64.
            packed: n rows.
            positions: [tokens] int64, where the tokens go.
            length: positions that attention sees, > every one of ``positions``.
        """
        num_kv_heads, context_len = self._kv.shape[3:5]
        heads = slots[packed.row] * num_kv_heads + torch.arange(num_kv_heads)[:, None]
        self._index = (heads * context_len + positions).flatten()
        self._rows, self._length = slots, length

    def plan_decode(self, rows: slice, positions: Tensor, length: int) -> None:
        """The next forward pass adds one token to each of these slots.

        Args:
            rows: the slots, contiguous.
            positions: [rows] int64, where the token goes.
            length: positions that attention sees, > every one of ``positions``.
        """
        num_kv_heads, context_len = self._kv.shape[3:5]
        heads = torch.arange(rows.start, rows.stop)[:, None] * num_kv_heads + torch.arange(num_kv_heads)
        self._index = (heads * context_len + positions[:, None]).flatten()
        self._rows, self._length = rows, length

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store new keys and values [batch, kv heads, tokens, head size]; return those that attention reads."""
        if self._index is None:
            self._store_prompt(layer_idx, key_states, value_states)
            return key_states, value_states
        return self._add(layer_idx, 0, key_states, self._index), self._add(layer_idx, 1, value_states, self._index)

    def _store_prompt(self, layer_idx: int, key_states: Tensor, value_states: Tensor) -> None:
        num_tokens = key_states.shape[2]
        for which, states in enumerate((key_states, value_states)):
            self._kv[layer_idx, which][self._rows, :, :num_tokens] = states[self._sources]

    def _add(self, layer_idx: int, which: int, states: Tensor, index: Tensor) -> Tensor:
        layer = self._kv[layer_idx, which]
        layer.view(-1, layer.shape[-1]).index_copy_(0, index, states.reshape(-1, states.shape[-1]))
        return layer[self._rows, :, : self._length]

    def move(self, sources: list[int], targets: list[int], length: int) -> None:
        """Copy the first ``length`` positions of slots over as many others."""
        self._kv[:, :, targets, :, :length] = self._kv[:, :, sources, :, :length]

    def clear(self, slots: slice) -> None:
        """Zero slots that may hold numbers that are not finite."""
        self._kv[:, :, slots] = 0

    def release(self) -> None:
        """Give the memory back; nothing may be stored or read until ``resume``."""
        self._kv.untyped_storage().resize_(0)

    def resume(self) -> None:
        """Take it again, zeroed."""
        self._kv.untyped_storage().resize_(self._kv.nbytes)
        self._kv.zero_()


def slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    packed: Packed | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Grouped-query attention: without repeated keys where there is a mask, causal for whole sequences.

    Rows that are packed are spread out for it, with padding; everything else in a layer is computed without.

    Args:
        module: the attention layer (unused).
        query: [batch, heads, tokens, head size]; heads of one group are neighbours.
        key: [batch, kv heads, length, head size]; ``value`` alike.
        value: see ``key``.
        attention_mask: [batch, 1, tokens, length], additive; None for sequences from position 0, which are causal.
        scaling: factor of the scores.
        packed: how the one row of ``query`` is cut; keys, values and mask have the rows.

    Returns:
        [batch, tokens, heads, head size], and None for the weights.
    """
    if packed is not None:
        spread = query[0][:, packed.token_at].transpose(0, 1)
        out = slot_attention(module, spread, key, value, attention_mask, scaling)[0]
        return out[packed.row, packed.place][None], None
    batch, heads, tokens, size = query.shape
    groups = heads // key.shape[1]
    if attention_mask is None:
        key, value = (_repeated(states, groups) for states in (key, value))
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling).transpose(1, 2), None
    # The query heads of a group stand beside each other as if they were query tokens: they see the same keys.
    folded = query.reshape(batch, heads // groups, groups * tokens, size)
    mask = attention_mask if tokens == 1 else attention_mask.repeat(1, 1, groups, 1)
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, tokens, size).transpose(1, 2), None


def _repeated(states: Tensor, groups: int) -> Tensor:
    """[batch, kv heads, …] to [batch, kv heads × groups, …]."""
    return states if groups == 1 else states.repeat_interleave(groups, dim=1)


AttentionInterface.register(ATTENTION_NAME, slot_attention)
