"""Which tokens of joining rows are computed in which forward passes, before a row's next token can be drawn.

    head  computed from position 0; rows with the same head share one computation and copy its keys and values
    tail  computed behind the head: what a row of a shared prompt had already answered when it was retracted

The samples of one group have the same prompt, so of eight rows that join together one is computed. In deterministic mode a
row shares nothing and every pass has a fixed shape.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from miles.engines.embedded.request import Generation

PASS_TOKENS = 8192  # most tokens, padding included, of one pass
TAIL_CELLS = 1 << 24  # most cells of the mask of a pass over tails: rows × tokens × positions seen
FIXED_TOKENS = 512  # tokens of one deterministic pass, if the row is not longer
LENGTH_STEP = 16  # attention sees a multiple of so many positions; fewer distinct shapes

Tokens = tuple[int, ...]


class Joining(NamedTuple):
    """The tokens of one joining row; ``tail`` may be empty."""

    head: Tokens
    tail: Tokens


@dataclass(frozen=True, slots=True)
class HeadPass:
    """One forward pass over token sequences from position 0.

    heads: the sequences.
    rows: which joining rows begin with one of them, and ``sources``: with which one, for each of these rows.
    num_rows, length: shape of the pass; what the heads do not fill is padding.
    """

    heads: Sequence[Tokens]
    rows: Sequence[int]
    sources: Sequence[int]
    num_rows: int
    length: int


def split(generations: Sequence[Generation]) -> list[Joining]:
    """Head and tail of every row: a prompt that two or more rows begin with is a head of its own."""
    rows_of = Counter(generation.request.input_ids for generation in generations)
    return [_joining(generation, is_shared=rows_of[generation.request.input_ids] > 1) for generation in generations]


def _joining(generation: Generation, *, is_shared: bool) -> Joining:
    prompt, answer = generation.request.input_ids, tuple(generation.output_ids)
    if is_shared and len(answer) * generation.num_tokens <= TAIL_CELLS:
        return Joining(prompt, answer)
    return Joining(prompt + answer, ())


def head_passes(joining: Sequence[Joining]) -> Iterator[HeadPass]:
    """Every distinct head once, heads of alike length together."""
    rows_of: dict[Tokens, list[int]] = {}
    for row, (head, _) in enumerate(joining):
        rows_of.setdefault(head, []).append(row)
    for heads in cut_by_tokens(sorted(rows_of, key=len)):
        rows = [row for head in heads for row in rows_of[head]]
        sources = [source for source, head in enumerate(heads) for _ in rows_of[head]]
        yield HeadPass(heads, rows, sources, len(heads), len(heads[-1]))


def tail_passes(joining: Sequence[Joining]) -> Iterator[list[int]]:
    """The rows that have a tail, those of alike length together."""
    rows = [row for row, (_, tail) in enumerate(joining) if tail]
    batch: list[int] = []
    for row in sorted(rows, key=lambda row: len(joining[row].tail)):
        tokens, seen = len(joining[row].tail), max(sum(map(len, joining[other])) for other in [*batch, row])
        if batch and (len(batch) + 1) * tokens * seen > TAIL_CELLS:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def fixed_passes(generations: Sequence[Generation], context_len: int) -> Iterator[HeadPass]:
    """Rows, shortest first, in passes whose shape follows from a row's own length alone."""
    sequences = [generation.request.input_ids + tuple(generation.output_ids) for generation in generations]
    first = 0
    for length, group in groupby(sequences, key=lambda tokens: min(context_len, _next_power_of_two(len(tokens)))):
        members, num_rows = list(group), max(1, FIXED_TOKENS // length)
        for start in range(0, len(members), num_rows):
            heads = members[start : start + num_rows]
            yield HeadPass(heads, range(first, first + len(heads)), range(len(heads)), num_rows, length)
            first += len(heads)


def cut_by_tokens(sequences: Iterable[Tokens]) -> Iterator[list[Tokens]]:
    """Sequences, shortest first, in batches of at most ``PASS_TOKENS`` with padding; none is padded beyond twice its length."""
    batch: list[Tokens] = []
    for tokens in sequences:
        length = len(tokens)
        too_wide = bool(batch) and length > max(2 * len(batch[0]), LENGTH_STEP)
        if batch and (too_wide or length * (len(batch) + 1) > PASS_TOKENS):
            yield batch
            batch = []
        batch.append(tokens)
    if batch:
        yield batch


def whole_steps(length: int) -> int:
    """The next multiple of ``LENGTH_STEP``."""
    return math.ceil(length / LENGTH_STEP) * LENGTH_STEP


def _next_power_of_two(number: int) -> int:
    return max(LENGTH_STEP, 1 << (number - 1).bit_length())
