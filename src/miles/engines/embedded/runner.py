"""Forward passes and draws for the rows of the scheduler: prefill of joining rows, one decode step for all.

Rows depend on the shapes of the matrices they are computed in. So in deterministic mode every shape is fixed: decode
works on whole tiles of ``DECODE_TILE`` slots and the full context, prefill on the passes of ``prefill.fixed_passes``.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from miles.engines.embedded.model import LoadedModel
from miles.engines.embedded.prefill import HeadPass, Joining, fixed_passes, head_passes, split, tail_passes, whole_steps
from miles.engines.embedded.request import Generation
from miles.engines.embedded.sampling import RowParams, sample
from miles.engines.embedded.slots import pack

DECODE_TILE = 32  # slots of one deterministic decode pass


class Runner(Protocol):
    """What the scheduler asks of a runner; ``TorchRunner`` is the real one."""

    def prefill(self, generations: Sequence[Generation], first_slot: int) -> list[tuple[int, float]]:
        """Put generations, shortest first, into the slots from ``first_slot`` on; the next (token, log-probability) of each."""
        ...

    def decode(self, num_rows: int) -> list[tuple[int, float]]:
        """The next (token, log-probability) of each of the first ``num_rows`` slots."""
        ...

    def move(self, sources: list[int], targets: list[int]) -> None:
        """Slot ``sources[i]`` takes the place of slot ``targets[i]``; no slot is both."""
        ...

    def clear(self, slots: slice) -> None:
        """Forget slots that may hold numbers that are not finite."""
        ...

    def release(self) -> None:
        """Free the cache; no slot is in use."""
        ...

    def resume(self) -> None:
        """Have a cache again."""
        ...


class TorchRunner:
    """Runs the model; keeps per slot the newest token, its position and the sampling parameters."""

    def __init__(self, model: LoadedModel, num_slots: int, context_len: int, *, deterministic: bool) -> None:
        self._model = model
        self._deterministic = deterministic
        self._tile = min(DECODE_TILE, num_slots)
        padded_slots = math.ceil(num_slots / self._tile) * self._tile
        self._context_len = context_len
        self._cache = model.new_cache(padded_slots, context_len)
        self._token = torch.zeros(padded_slots, dtype=torch.int64)
        self._position = torch.zeros(padded_slots, dtype=torch.int64)  # of the newest token, not yet in the cache
        self._params = RowParams(
            temperature=torch.ones(padded_slots),
            top_p=torch.ones(padded_slots),
            top_k=torch.zeros(padded_slots, dtype=torch.int64),
            seed=torch.zeros(padded_slots, dtype=torch.int64),
        )
        self._columns = torch.arange(context_len)

    def prefill(self, generations: Sequence[Generation], first_slot: int) -> list[tuple[int, float]]:
        """See ``Runner``."""
        slots = slice(first_slot, first_slot + len(generations))
        logits = torch.empty(len(generations), self._model.vocab_size)
        if self._deterministic:
            for heads in fixed_passes(generations, self._context_len):
                self._prefill_heads(heads, first_slot, logits)
        else:
            joining = split(generations)
            for heads in head_passes(joining):
                self._prefill_heads(heads, first_slot, logits)
            for rows in tail_passes(joining):
                self._prefill_tails([joining[row] for row in rows], torch.tensor(rows), first_slot, logits)
        self._position[slots] = torch.tensor([generation.num_tokens for generation in generations])
        self._set_params(generations, slots)
        return self._draw(logits, slots)

    def _prefill_heads(self, batch: HeadPass, first_slot: int, logits: Tensor) -> None:
        """Compute heads, keep their keys and values in every slot that begins with them, put down the logits behind them."""
        input_ids = torch.zeros(batch.num_rows, batch.length, dtype=torch.int64)
        last = torch.zeros(batch.num_rows, dtype=torch.int64)
        for row, head in enumerate(batch.heads):
            input_ids[row, : len(head)] = torch.tensor(head)
            last[row] = len(head) - 1
        rows, sources = torch.tensor(batch.rows), torch.tensor(batch.sources)
        self._cache.plan_prefill(first_slot + rows, sources)
        positions = self._columns[: batch.length].expand(batch.num_rows, -1)
        hidden = self._model.hidden_states(input_ids, positions, None, self._cache)
        logits[rows] = self._model.logits(hidden[torch.arange(batch.num_rows), last])[sources]

    def _prefill_tails(self, batch: Sequence[Joining], rows: Tensor, first_slot: int, logits: Tensor) -> None:
        """Compute tails behind the heads that are in the cache, put down the logits behind them."""
        packed = pack([len(tail) for _, tail in batch])
        positions = torch.tensor([len(head) for head, _ in batch])[packed.row] + packed.place
        length = min(self._context_len, whole_steps(int(positions.max()) + 1))
        self._cache.plan_tails(first_slot + rows, packed, positions, length)
        input_ids = torch.tensor([[token for _, tail in batch for token in tail]])
        mask = self._hides_later(positions[packed.token_at], length)
        hidden = self._model.hidden_states(input_ids, positions[None], mask, self._cache, packed)
        logits[rows] = self._model.logits(hidden[0, packed.token_at[:, -1]])

    def _hides_later(self, positions: Tensor, length: int) -> Tensor:
        """Additive mask [rows, 1, tokens, length]: a token at ``positions`` [rows, tokens] sees itself and those before."""
        is_later = self._columns[:length] > positions[:, :, None]
        return torch.zeros(is_later.shape, dtype=self._model.dtype).masked_fill_(is_later, -math.inf)[:, None]

    def _set_params(self, batch: Sequence[Generation], slots: slice) -> None:
        samplings = [generation.request.sampling for generation in batch]
        params = self._params
        params.temperature[slots] = torch.tensor([s.temperature for s in samplings])
        params.top_p[slots] = torch.tensor([s.top_p for s in samplings])
        params.top_k[slots] = torch.tensor([s.top_k for s in samplings])
        params.seed[slots] = torch.tensor([s.seed for s in samplings])

    def decode(self, num_rows: int) -> list[tuple[int, float]]:
        """See ``Runner``."""
        if not self._deterministic:
            longest = int(self._position[:num_rows].max()) + 1
            length = min(self._context_len, whole_steps(longest))
            return self._decode_rows(slice(0, num_rows), length)
        drawn: list[tuple[int, float]] = []
        for start in range(0, num_rows, self._tile):
            drawn += self._decode_rows(slice(start, start + self._tile), self._context_len)
        return drawn[:num_rows]

    def _decode_rows(self, rows: slice, length: int) -> list[tuple[int, float]]:
        positions = self._position[rows].clamp(max=self._context_len - 1)
        self._cache.plan_decode(rows, positions, length)
        mask = self._hides_later(positions[:, None], length)
        hidden = self._model.hidden_states(self._token[rows, None], positions[:, None], mask, self._cache)
        self._position[rows] += 1
        return self._draw(self._model.logits(hidden[:, 0]), rows)

    def _draw(self, logits: Tensor, slots: slice) -> list[tuple[int, float]]:
        params = self._params
        rows = RowParams(params.temperature[slots], params.top_p[slots], params.top_k[slots], params.seed[slots])
        tokens, logprobs = sample(logits, rows, self._position[slots])
        self._token[slots] = tokens
        return list(zip(tokens.tolist(), logprobs.tolist(), strict=True))

    def move(self, sources: list[int], targets: list[int]) -> None:
        """See ``Runner``."""
        self._cache.move(sources, targets, int(self._position[sources].max()))
        for column in (self._token, self._position, *self._param_columns()):
            column[targets] = column[sources]

    def clear(self, slots: slice) -> None:
        """See ``Runner``."""
        self._cache.clear(slots)

    def release(self) -> None:
        """See ``Runner``."""
        self._cache.release()

    def resume(self) -> None:
        """See ``Runner``."""
        self._cache.resume()

    def _param_columns(self) -> tuple[Tensor, ...]:
        return self._params.temperature, self._params.top_p, self._params.top_k, self._params.seed
