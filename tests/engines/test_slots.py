"""Attention over slots against plain softmax attention, and what may not change elsewhere in the cache."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.engines.embedded.slots import SlotCache, pack, slot_attention

pytestmark = pytest.mark.unit

KV_HEADS, GROUPS, CONTEXT, SIZE, SLOTS = 2, 3, 12, 8, 5


def plain(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Last query [heads, size] over keys and values [kv heads, length, size], head by head, in float64."""
    out = []
    for head in range(KV_HEADS * GROUPS):
        k, v = keys[head // GROUPS].double(), values[head // GROUPS].double()
        out.append((query[head].double() @ k.T * SIZE**-0.5).softmax(-1) @ v)
    return torch.stack(out)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, CONTEXT - 1), min_size=1, max_size=SLOTS), st.integers(0, 2**16))
def test_prefill_then_decode_is_plain_attention(lengths: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    cache = SlotCache(1, SLOTS, KV_HEADS, CONTEXT, SIZE)
    count, longest = len(lengths), max(lengths)
    queries = torch.randn(count, KV_HEADS * GROUPS, longest, SIZE)
    keys, values = torch.randn(2, count, KV_HEADS, longest, SIZE).unbind()
    cache.plan_prefill(torch.arange(count), torch.arange(count))
    out, _ = slot_attention(torch.nn.Module(), queries, *cache.update(keys, values, 0), None, scaling=SIZE**-0.5)
    for row, length in enumerate(lengths):
        expected = plain(queries[row, :, length - 1], keys[row, :, :length], values[row, :, :length])
        torch.testing.assert_close(out[row, length - 1].double(), expected, atol=1e-5, rtol=1e-5)
    positions = torch.tensor(lengths)
    query = torch.randn(count, KV_HEADS * GROUPS, 1, SIZE)
    new_keys, new_values = torch.randn(2, count, KV_HEADS, 1, SIZE).unbind()
    cache.plan_decode(slice(0, count), positions, CONTEXT)
    mask = torch.zeros(count, 1, 1, CONTEXT).masked_fill_((torch.arange(CONTEXT) > positions[:, None])[:, None, None], -math.inf)
    out, _ = slot_attention(torch.nn.Module(), query, *cache.update(new_keys, new_values, 0), mask, scaling=SIZE**-0.5)
    for row, length in enumerate(lengths):
        every = (torch.cat([old[row, :, :length], new[row]], 1) for old, new in ((keys, new_keys), (values, new_values)))
        torch.testing.assert_close(out[row, 0].double(), plain(query[row, :, 0], *every), atol=1e-5, rtol=1e-5)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, CONTEXT - 6)), min_size=1, max_size=SLOTS), st.integers(0, 2**16))
def test_packed_tails_see_their_own_row_alone(rows: list[tuple[int, int]], seed: int) -> None:
    """Every token of every tail, behind heads of other lengths, against plain attention over the row up to itself."""
    torch.manual_seed(seed)
    cache, slots = SlotCache(1, SLOTS, KV_HEADS, CONTEXT, SIZE), torch.randperm(SLOTS)[: len(rows)]
    keys, values = torch.randn(2, len(rows), KV_HEADS, CONTEXT, SIZE).unbind()
    cache.plan_prefill(slots, torch.arange(len(rows)))
    cache.update(keys, values, 0)
    starts, packed = torch.tensor([head for head, _ in rows]), pack([tail for _, tail in rows])
    positions = starts[packed.row] + packed.place
    new_keys, new_values = torch.randn(2, 1, KV_HEADS, len(positions), SIZE).unbind()
    query = torch.randn(1, KV_HEADS * GROUPS, len(positions), SIZE)
    cache.plan_tails(slots, packed, positions, CONTEXT)
    later = torch.arange(CONTEXT) > positions[packed.token_at][:, :, None]
    mask = torch.zeros(later.shape).masked_fill_(later, -math.inf)[:, None]
    stored = cache.update(new_keys, new_values, 0)
    out, _ = slot_attention(torch.nn.Module(), query, *stored, mask, scaling=SIZE**-0.5, packed=packed)
    for token, (row, place) in enumerate(zip(packed.row.tolist(), packed.place.tolist(), strict=True)):
        begin, first = rows[row][0], token - place
        every = (
            torch.cat([old[row, :, :begin], new[0, :, first : token + 1]], 1)
            for old, new in ((keys, new_keys), (values, new_values))
        )
        torch.testing.assert_close(out[0, token].double(), plain(query[0, :, token], *every), atol=1e-5, rtol=1e-5)


def test_padding_rows_of_a_prefill_are_not_stored() -> None:
    cache = SlotCache(1, SLOTS, KV_HEADS, CONTEXT, SIZE)
    cache.plan_prefill(torch.tensor([1, 2]), torch.tensor([0, 1]))
    ones = torch.ones(4, KV_HEADS, 5, SIZE)
    cache.update(ones, ones, 0)
    cache.plan_decode(slice(0, SLOTS), torch.full((SLOTS,), CONTEXT - 1), CONTEXT - 1)
    zeros = torch.zeros(SLOTS, KV_HEADS, 1, SIZE)
    keys, _ = cache.update(zeros, zeros, 0)
    assert keys.sum(dim=(1, 2, 3)).tolist() == [0, *[KV_HEADS * 5 * SIZE] * 2, 0, 0]


def test_released_memory_is_the_systems_and_comes_back_empty() -> None:
    cache = SlotCache(2, 3, 2, 8, 4)
    storage = cache._kv.untyped_storage()
    cache._kv.fill_(1.0)
    held = storage.nbytes()
    cache.release()
    assert storage.nbytes() == 0
    cache.resume()
    assert storage.nbytes() == held == cache._kv.nbytes
    assert not cache._kv.any()
