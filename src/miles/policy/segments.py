"""What attends to what in rows that stand end to end, without a mask: queries in their order, and the keys of each run of them.

row:        p0 p1 p2 a0 a1 b0 | q0 c0        a prompt with two answers, a prompt with one
queries:    p0 p1 p2 │ a0 a1 │ b0 │ q0 c0
keys:       p0 p1 p2 │ p0 p1 p2 a0 a1 │ p0 p1 p2 b0 │ q0 c0

The last query of a segment sees all of its keys, the one before all but the last, and so on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from miles.policy.batch import Ints
from miles.policy.packing import Row

ARGUMENTS = {
    "cu_seq_lens_q": "query_ends",
    "cu_seq_lens_k": "key_ends",
    "key_index": "key_index",
    "max_length_q": "longest_query",
    "max_length_k": "longest_key",
}


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Runs of queries and their keys.

    query_ends, key_ends: [segments + 1], int32, running sums of their lengths, from 0.
    key_index: [keys], int64, the token that each key is of; None where the keys are the queries.
    longest_query, longest_key: of one segment, in tokens.
    """

    query_ends: Tensor
    key_ends: Tensor
    key_index: Tensor | None
    longest_query: int
    longest_key: int

    def to(self, device: torch.device) -> "Segments":
        """The same on another device."""
        index = None if self.key_index is None else self.key_index.to(device)
        return Segments(self.query_ends.to(device), self.key_ends.to(device), index, self.longest_query, self.longest_key)

    def arguments(self) -> dict[str, Any]:
        """What a transformers model hands on to its attention: the names are those of its ``FlashAttentionKwargs``, and one."""
        return {name: getattr(self, field) for name, field in ARGUMENTS.items()}

    @classmethod
    def handed_on(cls, arguments: Mapping[str, Any]) -> "Segments | None":
        """Those among the arguments of an attention; None where there are none."""
        if "cu_seq_lens_q" not in arguments:
            return None
        return cls(**{field: arguments[name] for name, field in ARGUMENTS.items()})


def segments_of(rows: Sequence[Row], prompt_lengths: Ints, fed_lengths: Ints) -> Segments:
    """The segments of rows that stand end to end.

    Args:
        rows: in their order.
        prompt_lengths: [prompts], tokens.
        fed_lengths: [samples of the batch], tokens of each answer that are fed.
    """
    found: list[tuple[int, Ints]] = []
    start = 0
    for row in rows:
        found += _of_row(row, start, int(prompt_lengths[row.prompt]), fed_lengths)
        start += row.length
    queries, keys = [count for count, _ in found], [len(of_segment) for _, of_segment in found]
    index = None if queries == keys else torch.tensor(np.concatenate([of_segment for _, of_segment in found]))
    return Segments(_ends(queries), _ends(keys), index, max(queries), max(keys))


def _of_row(row: Row, start: int, prompt_length: int, fed_lengths: Ints) -> Iterator[tuple[int, Ints]]:
    """Number of queries, and the tokens that are their keys."""
    if len(row.samples) == 1:
        yield row.length, np.arange(start, start + row.length)
        return
    prompt, cursor = np.arange(start, start + prompt_length), start + prompt_length
    yield prompt_length, prompt
    for sample in row.samples:
        fed = int(fed_lengths[sample])
        if fed:
            yield fed, np.concatenate((prompt, np.arange(cursor, cursor + fed)))
        cursor += fed


def _ends(lengths: Sequence[int]) -> Tensor:
    """[lengths + 1], int32."""
    return torch.tensor(np.concatenate(([0], np.cumsum(lengths))), dtype=torch.int32)
