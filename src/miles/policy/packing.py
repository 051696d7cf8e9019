"""Which tokens go through the model together: rows that share a prompt, micro-batches of rows.

    samples ──plan_rows──► rows: prompt | answer | answer | …  ──plan_micro_batches──► forward passes

The answers of a group share their prompt, so a row holds the prompt once and several answers after it, each of which sees the
prompt and itself alone. Rows of a forward pass stand below each other, padded to the longest, so they are sorted by length and
cut into runs; or they stand end to end, and any of them go together. Everything here works on lengths alone and depends on
nothing but them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from miles.policy.batch import Ints


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a forward pass: a prompt and some of its answers.

    prompt: row of the batch's distinct prompts. samples: positions in the batch. length: tokens. pairs: of a token and one it may
    see, counted for whole blocks (prompt × prompt, answer × prompt and answer).
    """

    prompt: int
    samples: tuple[int, ...]
    length: int
    pairs: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a forward pass stand.

    hidden_size: of the model. shares_prompts: whether a row may hold more than one answer. end_to_end: rows stand one after the
    other and attention computes what is seen; otherwise below each other, padded, and attention is dense.
    """

    hidden_size: int
    shares_prompts: bool
    end_to_end: bool = False

    def cost(self, row: Row) -> int:
        """Of a row of n tokens, relative: 6·n·hidden + pairs.

        The matrix products, about 12·hidden² a token and layer, beside attention, 2·hidden a pair; dense attention has n² pairs.
        """
        return 6 * row.length * self.hidden_size + (row.pairs if self.end_to_end else row.length**2)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one forward pass may hold; a sample that alone exceeds ``max_tokens`` still gets one of its own.

    max_tokens: of all rows, padding included. max_samples: answers. None: no limit.
    """

    max_tokens: int | None = None
    max_samples: int | None = None

    def hold(self, num_tokens: int, num_samples: int) -> bool:
        """Whether so much fits."""
        tokens_fit = self.max_tokens is None or num_tokens <= self.max_tokens
        return tokens_fit and (self.max_samples is None or num_samples <= self.max_samples)


def plan_rows(
    samples: Sequence[int], prompt_of: Ints, prompt_lengths: Ints, fed_lengths: Ints, limits: Limits, layout: Layout
) -> list[Row]:
    """Rows that hold each of ``samples`` once, in order of first appearance of their prompts.

    A sample joins the open row of its prompt where that fits and costs less than a row of its own.

    Args:
        samples: positions in the batch.
        prompt_of: [samples of the batch].
        prompt_lengths: [prompts], tokens.
        fed_lengths: [samples of the batch], ``TrainBatch.fed_lengths``.
        limits: what one forward pass may hold.
        layout: how rows are computed.
    """
    by_prompt: dict[int, list[int]] = {}
    for sample in samples:
        by_prompt.setdefault(int(prompt_of[sample]), []).append(sample)
    rows: list[Row] = []
    for prompt, members in by_prompt.items():
        rows += _rows_of_prompt(prompt, members, int(prompt_lengths[prompt]), fed_lengths, limits, layout)
    return rows


def _rows_of_prompt(
    prompt: int, members: list[int], prompt_length: int, fed_lengths: Ints, limits: Limits, layout: Layout
) -> list[Row]:
    """Fill one row after the other with the samples of one prompt."""
    rows: list[Row] = []
    for sample in members:
        whole = prompt_length + int(fed_lengths[sample])
        answer_pairs = int(fed_lengths[sample]) * whole
        alone = Row(prompt, (sample,), whole, prompt_length**2 + answer_pairs)
        joined = _with(rows[-1], sample, whole - prompt_length, answer_pairs) if rows and layout.shares_prompts else None
        if joined is not None and _is_better(joined, rows[-1], alone, limits, layout):
            rows[-1] = joined
        else:
            rows.append(alone)
    return rows


def _with(row: Row, sample: int, length: int, pairs: int) -> Row:
    """The row with one more answer."""
    return Row(row.prompt, (*row.samples, sample), row.length + length, row.pairs + pairs)


def _is_better(joined: Row, row: Row, alone: Row, limits: Limits, layout: Layout) -> bool:
    """Whether one row is possible and no dearer than two."""
    cheaper = layout.cost(joined) <= layout.cost(row) + layout.cost(alone)
    return cheaper and limits.hold(joined.length, len(joined.samples))


def share_rows(rows: Sequence[Row], num_ranks: int, layout: Layout) -> list[list[Row]]:
    """The rows of each rank: the dearest first, each to the rank with the least to do. Every rank finds the same shares.

    The largest share is at most 4/3 of the smallest possible (Graham 1969, longest processing time first).
    """
    shares: list[list[Row]] = [[] for _ in range(num_ranks)]
    load = [0] * num_ranks
    for row in sorted(rows, key=lambda row: -layout.cost(row)):
        rank = load.index(min(load))
        shares[rank].append(row)
        load[rank] += layout.cost(row)
    return shares


def plan_micro_batches(rows: Sequence[Row], limits: Limits, layout: Layout) -> list[list[Row]]:
    """Micro-batches of the rows within the limits: as few as ``_filled`` finds, and the largest as small as that number permits.

    Equal lengths keep their order, so the same rows always give the same micro-batches.
    """
    ordered = sorted(rows, key=lambda row: -row.length)
    oversize = [row for row in ordered if limits.max_tokens is not None and row.length > limits.max_tokens]
    return [[row] for row in oversize] + _balanced(ordered[len(oversize) :], limits, layout)


def _balanced(ordered: Sequence[Row], limits: Limits, layout: Layout) -> list[list[Row]]:
    """The parts with the smallest largest one among those that are as few, found by bisecting the size."""
    if not ordered:
        return []
    fewest = len(_filled(ordered, limits, layout))
    low = ordered[0].length
    high = limits.max_tokens or low * len(ordered)
    while low < high:
        middle = (low + high) // 2
        if len(_filled(ordered, Limits(middle, limits.max_samples), layout)) <= fewest:
            high = middle
        else:
            low = middle + 1
    return [part.rows for part in _filled(ordered, Limits(low, limits.max_samples), layout)]


@dataclass(slots=True)
class _Part:
    """A micro-batch in the making."""

    rows: list[Row]
    num_tokens: int
    num_samples: int

    def takes(self, row: Row, limits: Limits, *, end_to_end: bool) -> bool:
        """Add the row, which is no longer than the first, where it fits."""
        width = row.length if end_to_end else self.rows[0].length
        if not limits.hold(self.num_tokens + width, self.num_samples + len(row.samples)):
            return False
        self.rows.append(row)
        self.num_tokens += width
        self.num_samples += len(row.samples)
        return True


def _filled(ordered: Sequence[Row], limits: Limits, layout: Layout) -> list[_Part]:
    """Rows in falling length: runs of them where they are padded, the fewest there are; else each in the first part with room.

    First fit of falling sizes needs at most 11/9 of the fewest parts and one more (Johnson 1973).
    """
    parts: list[_Part] = []
    for row in ordered:
        with_room = parts if layout.end_to_end else parts[-1:]
        if not any(part.takes(row, limits, end_to_end=layout.end_to_end) for part in with_room):
            parts.append(_Part([row], row.length, len(row.samples)))
    return parts
