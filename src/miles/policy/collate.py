"""Rows of a micro-batch as the tensors of one forward pass.

row:        prompt p0 p1 p2 | a0 a1 | b0          answers without their last token, which predicts nothing
position:          0  1  2  |  3  4 |  3          each answer continues the prompt
sees:       a0, a1 see the prompt and a; b0 sees the prompt and b
predicted:  p2→a0, a0→a1, a1→a2, p2→b0, b0→b1     only trained tokens, so the head runs on nothing else

Rows stand below each other, padded, and a mask says what is seen; or end to end in one line, and segments say it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from miles.policy.batch import Ints, TrainBatch
from miles.policy.packing import Row
from miles.policy.segments import Segments, segments_of


@dataclass(frozen=True, slots=True, eq=False)
class ForwardInput:
    """One forward pass.

    input_ids, position_ids: [rows, width], int64; padding is 0 at the right end. Rows that stand end to end are one.
    visible: [rows, 1, width, width], bool, whether the query (third axis) sees the key; None where rows are plain sequences.
    source: [tokens], int64, position in the flattened [rows × width] whose hidden state predicts the token.
    target: [tokens], int64, the token predicted.
    response_index: [tokens], int64, its place among the batch's response tokens.
    sample_of: [tokens], int64, its sample in the batch.
    segments: of rows that stand end to end.
    """

    input_ids: Tensor
    position_ids: Tensor
    visible: Tensor | None
    source: Tensor
    target: Tensor
    response_index: Tensor
    sample_of: Tensor
    segments: Segments | None = None

    def to(self, device: torch.device) -> "ForwardInput":
        """The same on another device."""
        if device.type == "cpu":
            return self
        names = ("input_ids", "position_ids", "source", "target", "response_index", "sample_of")
        moved: dict[str, Any] = {name: getattr(self, name).to(device) for name in names}
        for name in ("visible", "segments"):
            given = getattr(self, name)
            moved[name] = None if given is None else given.to(device)
        return ForwardInput(**moved)


def nothing_to_predict() -> ForwardInput:
    """One token and no prediction: a rank that has less to do than the others keeps them company with it."""
    none, zero = torch.empty(0, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64)
    return ForwardInput(zero, zero, None, none, none, none, none)


def collate(batch: TrainBatch, rows: Sequence[Row], *, end_to_end: bool = False) -> ForwardInput:
    """The forward pass of these rows."""
    lengths = [row.length for row in rows]
    width = sum(lengths) if end_to_end else max(lengths)
    shape = (1, width) if end_to_end else (len(rows), width)
    starts = [0, *np.cumsum(lengths[:-1]).tolist()] if end_to_end else range(0, len(rows) * width, width)
    ids = np.zeros(shape[0] * width, np.int64)
    positions = np.tile(np.arange(width), shape[0])
    answer = np.zeros_like(ids)
    fed = batch.fed_lengths
    places: list[tuple[int, int, int]] = []  # sample, where its prompt ends, where its answer starts; in the flattened rows
    for start, row in zip(starts, rows, strict=True):
        prompt = batch.prompt_ids[batch.prompt_offsets[row.prompt] : batch.prompt_offsets[row.prompt + 1]]
        prompt_end = cursor = start + len(prompt)
        ids[start:cursor], positions[start:cursor] = prompt, np.arange(len(prompt))
        for place, sample in enumerate(row.samples, start=1):
            first, end = batch.response_offsets[sample], cursor + int(fed[sample])
            ids[cursor:end] = batch.response_ids[first : first + end - cursor]
            positions[cursor:end] = np.arange(len(prompt), len(prompt) + end - cursor)
            answer[cursor:end] = place
            places.append((sample, prompt_end, cursor))
            cursor = end
    source, index, sample_of = _predictions(batch, places)
    is_masked = not end_to_end and any(len(row.samples) > 1 for row in rows)
    return ForwardInput(
        input_ids=torch.tensor(ids).reshape(shape),
        position_ids=torch.tensor(positions).reshape(shape),
        visible=visible_keys(torch.tensor(answer).reshape(shape)) if is_masked else None,
        source=torch.tensor(source),
        target=torch.tensor(batch.response_ids[index]),
        response_index=torch.tensor(index),
        sample_of=torch.tensor(sample_of),
        segments=segments_of(rows, batch.prompt_lengths, fed) if end_to_end else None,
    )


def _predictions(batch: TrainBatch, places: Sequence[tuple[int, int, int]]) -> tuple[Ints, Ints, Ints]:
    """``source``, ``response_index`` and ``sample_of`` of every trained token, sample by sample."""
    sources, indices, owners = [], [], []
    for sample, prompt_end, answer_start in places:
        first = batch.response_offsets[sample]
        trained = np.flatnonzero(batch.trained[first : batch.response_offsets[sample + 1]])
        sources.append(np.where(trained == 0, prompt_end, answer_start + trained) - 1)
        indices.append(first + trained)
        owners.append(np.full(len(trained), sample, np.int64))
    return np.concatenate(sources), np.concatenate(indices), np.concatenate(owners)


def visible_keys(answer: Tensor) -> Tensor:
    """[rows, 1, width, width], bool: earlier positions of the prompt (answer 0) and of the query's own answer.

    Padding counts as prompt after the answers, which nothing before it sees.

    Args:
        answer: [rows, width], 0 for the prompt, then the number of the answer in the row.
    """
    width = answer.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    same = answer[:, :, None] == answer[:, None, :]
    return (causal & (same | (answer == 0)[:, None, :]))[:, None]
