"""Forward passes and draws for the rows of the scheduler: prefill of joining rows, one decode step for all.

Rows depend on the shapes of the matrices they are computed in. So in deterministic mode every shape is fixed: decode
works on whole tiles of ``DECODE_TILE`` slots and the full context, prefill on a fixed number of rows whose length is
the next power of two above the row's own.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from miles.engines.embedded.model import LoadedModel
from miles.engines.embedded.request import Generation
from miles.engines.embedded.sampling import RowParams, sample

DECODE_TILE = 32  # slots of one deterministic decode pass
PREFILL_TOKENS = 8192  # most tokens, padding included, of one prefill pass
FIXED_PREFILL_TOKENS = 512  # tokens of one deterministic prefill pass, if the row is not longer
LENGTH_STEP = 16  # attention sees a multiple of so many positions; fewer distinct shapes


class Runner(Protocol):
    """What the scheduler asks of a runner; ``TorchRunner`` is the real one."""

    def prefill(self, generations: Sequence[Generation], first_slot: int) -> list[tuple[int, float]]:
        """Put generations, shortest first, into the slots from ``first_slot`` on; the next (token, log-probability) of each."""
        ...

    def decode(self, num_rows: int) -> list[tuple[int, float]]:
        """The next (token, log-probability) of each of the first ``num_rows`` slots."""
        ...

    def move(self, source: int, target: int) -> None:
        """Slot ``source`` takes the place of slot ``target``."""
        ...

    def clear(self, slots: slice) -> None:
        """Forget slots that may hold numbers that are not finite."""
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
        drawn: list[tuple[int, float]] = []
        for batch, rows, length in self._prefill_batches(generations):
            first = first_slot + len(drawn)
            drawn += self._prefill_batch(batch, slice(first, first + len(batch)), rows, length)
        return drawn

    def _prefill_batches(self, generations: Sequence[Generation]) -> Iterator[tuple[list[Generation], int, int]]:
        """Cut into batches: (generations, rows with padding, padded length), in order."""
        if not self._deterministic:
            yield from _cut_by_tokens(generations)
            return
        for length, group in groupby(generations, key=self._fixed_length):
            members, rows = list(group), max(1, FIXED_PREFILL_TOKENS // length)
            for start in range(0, len(members), rows):
                yield members[start : start + rows], rows, length

    def _fixed_length(self, generation: Generation) -> int:
        return min(self._context_len, _next_power_of_two(generation.num_tokens))

    def _prefill_batch(self, batch: list[Generation], slots: slice, rows: int, length: int) -> list[tuple[int, float]]:
        input_ids = torch.zeros(rows, length, dtype=torch.int64)
        last = torch.zeros(rows, dtype=torch.int64)
        for row, generation in enumerate(batch):
            input_ids[row, : generation.num_tokens] = torch.tensor([*generation.request.input_ids, *generation.output_ids])
            last[row] = generation.num_tokens - 1
        self._set_params(batch, slots)
        self._cache.plan_prefill(slots)
        hidden = self._model.hidden_states(input_ids, self._columns[:length].expand(rows, -1), None, self._cache)
        logits = self._model.logits(hidden[torch.arange(rows), last])
        self._position[slots] = last[: len(batch)] + 1
        return self._draw(logits[: len(batch)], slots)

    def _set_params(self, batch: list[Generation], slots: slice) -> None:
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
            length = min(self._context_len, math.ceil(longest / LENGTH_STEP) * LENGTH_STEP)
            return self._decode_rows(slice(0, num_rows), length)
        drawn: list[tuple[int, float]] = []
        for start in range(0, num_rows, self._tile):
            drawn += self._decode_rows(slice(start, start + self._tile), self._context_len)
        return drawn[:num_rows]

    def _decode_rows(self, rows: slice, length: int) -> list[tuple[int, float]]:
        positions = self._position[rows].clamp(max=self._context_len - 1)
        hidden_from = self._columns[:length] > positions[:, None]
        mask = torch.zeros(hidden_from.shape, dtype=self._model.dtype).masked_fill_(hidden_from, -math.inf)[:, None, None, :]
        self._cache.plan_decode(rows, positions, length)
        hidden = self._model.hidden_states(self._token[rows, None], positions[:, None], mask, self._cache)
        self._position[rows] += 1
        return self._draw(self._model.logits(hidden[:, 0]), rows)

    def _draw(self, logits: Tensor, slots: slice) -> list[tuple[int, float]]:
        params = self._params
        rows = RowParams(params.temperature[slots], params.top_p[slots], params.top_k[slots], params.seed[slots])
        tokens, logprobs = sample(logits, rows, self._position[slots])
        self._token[slots] = tokens
        return list(zip(tokens.tolist(), logprobs.tolist(), strict=True))

    def move(self, source: int, target: int) -> None:
        """See ``Runner``."""
        self._cache.move(source, target, int(self._position[source]))
        for column in (self._token, self._position, *self._param_columns()):
            column[target] = column[source]

    def clear(self, slots: slice) -> None:
        """See ``Runner``."""
        self._cache.clear(slots)

    def _param_columns(self) -> tuple[Tensor, ...]:
        return self._params.temperature, self._params.top_p, self._params.top_k, self._params.seed


def _next_power_of_two(number: int) -> int:
    return max(LENGTH_STEP, 1 << (number - 1).bit_length())


def _cut_by_tokens(generations: Sequence[Generation]) -> Iterator[tuple[list[Generation], int, int]]:
    """Batches of at most ``PREFILL_TOKENS`` with padding, in which no row is padded to more than twice its length."""
    batch: list[Generation] = []
    longest = shortest = 0
    for generation in generations:
        length = generation.num_tokens
        new_longest, new_shortest = max(longest, length), min(shortest or length, length)
        too_wide = new_longest > max(2 * new_shortest, LENGTH_STEP)
        if batch and (too_wide or new_longest * (len(batch) + 1) > PREFILL_TOKENS):
            yield batch, len(batch), longest
            batch, new_longest, new_shortest = [], length, length
        batch.append(generation)
        longest, shortest = new_longest, new_shortest
    if batch:
        yield batch, len(batch), longest
