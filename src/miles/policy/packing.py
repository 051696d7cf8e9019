"""Which tokens go through the model together: rows that share a prompt, micro-batches of rows.

    samples ──plan_rows──► rows: prompt | answer | answer | …  ──plan_micro_batches──► forward passes

The answers of a group share their prompt, so a row holds the prompt once and several answers after it, each of which sees the
prompt and itself alone. Rows in a micro-batch are padded to the longest, so they are sorted by length and cut into runs.
Everything here works on lengths alone and depends on nothing but them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from miles.policy.batch import Ints


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a forward pass: a prompt and some of its answers.

    prompt: row of the batch's distinct prompts. samples: positions in the batch. length: tokens.
    """

    prompt: int
    samples: tuple[int, ...]
    length: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What one forward pass may hold; a sample that alone exceeds ``max_tokens`` still gets one of its own.

    max_tokens: rows × longest row, padding included. max_samples: answers. None: no limit.
    """

    max_tokens: int | None = None
    max_samples: int | None = None

    def hold(self, num_tokens: int, num_samples: int) -> bool:
        """Whether so much fits."""
        tokens_fit = self.max_tokens is None or num_tokens <= self.max_tokens
        return tokens_fit and (self.max_samples is None or num_samples <= self.max_samples)


def plan_rows(
    samples: Sequence[int], prompt_of: Ints, prompt_lengths: Ints, fed_lengths: Ints, limits: Limits, hidden_size: int | None
) -> list[Row]:
    """Rows that hold each of ``samples`` once, in order of first appearance of their prompts.

    A sample joins the open row of its prompt where that fits and costs less than a row of its own. Cost of a row of n tokens:
    n·(6·hidden + n), the matrix products (about 12·hidden² a token and layer) beside dense attention (2·n·hidden a token).

    Args:
        samples: positions in the batch.
        prompt_of: [samples of the batch].
        prompt_lengths: [prompts], tokens.
        fed_lengths: [samples of the batch], ``TrainBatch.fed_lengths``.
        limits: what one forward pass may hold.
        hidden_size: of the model; None where rows cannot share a prompt (every row then holds one sample).
    """
    by_prompt: dict[int, list[int]] = {}
    for sample in samples:
        by_prompt.setdefault(int(prompt_of[sample]), []).append(sample)
    rows: list[Row] = []
    for prompt, members in by_prompt.items():
        rows += _rows_of_prompt(prompt, members, int(prompt_lengths[prompt]), fed_lengths, limits, hidden_size)
    return rows


def _rows_of_prompt(
    prompt: int, members: list[int], prompt_length: int, fed_lengths: Ints, limits: Limits, hidden_size: int | None
) -> list[Row]:
    """Fill one row after the other with the samples of one prompt."""
    rows: list[Row] = []
    for sample in members:
        alone = Row(prompt, (sample,), prompt_length + int(fed_lengths[sample]))
        if rows and hidden_size is not None and _joins(rows[-1], alone, prompt_length, limits, hidden_size):
            rows[-1] = Row(prompt, (*rows[-1].samples, sample), rows[-1].length + alone.length - prompt_length)
        else:
            rows.append(alone)
    return rows


def _joins(row: Row, alone: Row, prompt_length: int, limits: Limits, hidden_size: int) -> bool:
    """Whether the sample of ``alone`` had better join ``row``."""
    joined = row.length + alone.length - prompt_length
    cheaper = _cost(joined, hidden_size) <= _cost(row.length, hidden_size) + _cost(alone.length, hidden_size)
    return cheaper and limits.hold(joined, len(row.samples) + 1)


def _cost(length: int, hidden_size: int) -> int:
    """Relative cost of a row."""
    return length * (6 * hidden_size + length)


def share_rows(rows: Sequence[Row], num_ranks: int, hidden_size: int) -> list[list[Row]]:
    """The rows of each rank: the dearest first, each to the rank with the least to do. Every rank finds the same shares.

    The largest share is at most 4/3 of the smallest possible (Graham 1969, longest processing time first).
    """
    shares: list[list[Row]] = [[] for _ in range(num_ranks)]
    load = [0] * num_ranks
    for row in sorted(rows, key=lambda row: -_cost(row.length, hidden_size)):
        rank = load.index(min(load))
        shares[rank].append(row)
        load[rank] += _cost(row.length, hidden_size)
    return shares


def plan_micro_batches(rows: Sequence[Row], limits: Limits) -> list[list[Row]]:
    """Cut the rows, sorted by length, into as few runs as the limits allow, the largest as small as that number permits.

    Size is rows × longest row. Equal lengths keep their order, so the same rows always give the same micro-batches.
    """
    ordered = sorted(rows, key=lambda row: -row.length)
    oversize = [row for row in ordered if limits.max_tokens is not None and row.length > limits.max_tokens]
    return [[row] for row in oversize] + _balanced(ordered[len(oversize) :], limits)


def _balanced(ordered: Sequence[Row], limits: Limits) -> list[list[Row]]:
    """The cut with the smallest largest run among those with the fewest runs, found by bisecting the size."""
    if not ordered:
        return []
    fewest = len(_cut(ordered, limits))
    low = ordered[0].length
    high = limits.max_tokens or low * len(ordered)
    while low < high:
        middle = (low + high) // 2
        if len(_cut(ordered, Limits(middle, limits.max_samples))) <= fewest:
            high = middle
        else:
            low = middle + 1
    return _cut(ordered, Limits(low, limits.max_samples))


def _cut(ordered: Sequence[Row], limits: Limits) -> list[list[Row]]:
    """Runs of rows in falling length, each filled until the next row would not fit."""
    runs: list[list[Row]] = []
    num_samples = 0
    for row in ordered:
        fits = bool(runs) and limits.hold((len(runs[-1]) + 1) * runs[-1][0].length, num_samples + len(row.samples))
        if fits:
            runs[-1].append(row)
            num_samples += len(row.samples)
        else:
            runs.append([row])
            num_samples = len(row.samples)
    return runs
