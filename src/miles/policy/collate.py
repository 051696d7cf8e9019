"""Rows of a micro-batch as the tensors of one forward pass.

row:        prompt p0 p1 p2 | a0 a1 | b0          answers without their last token, which predicts nothing
position:          0  1  2  |  3  4 |  3          each answer continues the prompt
sees:       a0, a1 see the prompt and a; b0 sees the prompt and b
predicted:  p2→a0, a0→a1, a1→a2, p2→b0, b0→b1     only trained tokens, so the head runs on nothing else
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from miles.policy.batch import Ints, TrainBatch
from miles.policy.packing import Row


@dataclass(frozen=True, slots=True, eq=False)
class ForwardInput:
    """One forward pass.

    input_ids, position_ids: [rows, width], int64; padding is 0 at the right end.
    visible: [rows, 1, width, width], bool, whether the query (third axis) sees the key; None where rows are plain sequences.
    source: [tokens], int64, position in the flattened [rows × width] whose hidden state predicts the token.
    target: [tokens], int64, the token predicted.
    response_index: [tokens], int64, its place among the batch's response tokens.
    sample_of: [tokens], int64, its sample in the batch.
    """

    input_ids: Tensor
    position_ids: Tensor
    visible: Tensor | None
    source: Tensor
    target: Tensor
    response_index: Tensor
    sample_of: Tensor

    def to(self, device: torch.device) -> "ForwardInput":
        """The same on another device."""
        if device.type == "cpu":
            return self
        visible = None if self.visible is None else self.visible.to(device)
        moved = [getattr(self, name).to(device) for name in ("source", "target", "response_index", "sample_of")]
        return ForwardInput(self.input_ids.to(device), self.position_ids.to(device), visible, *moved)


def nothing_to_predict() -> ForwardInput:
    """One token and no prediction: a rank that has less to do than the others keeps them company with it."""
    none, zero = torch.empty(0, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64)
    return ForwardInput(zero, zero, None, none, none, none, none)


def collate(batch: TrainBatch, rows: Sequence[Row]) -> ForwardInput:
    """The forward pass of these rows."""
    width = max(row.length for row in rows)
    shares = any(len(row.samples) > 1 for row in rows)
    ids = np.zeros((len(rows), width), np.int64)
    positions = np.tile(np.arange(width), (len(rows), 1))
    answer = np.zeros_like(ids)
    fed = batch.fed_lengths
    places: list[tuple[int, int, int]] = []  # sample, where its prompt ends, where its answer starts; in the flattened rows
    for number, row in enumerate(rows):
        prompt = batch.prompt_ids[batch.prompt_offsets[row.prompt] : batch.prompt_offsets[row.prompt + 1]]
        cursor = len(prompt)
        ids[number, :cursor] = prompt
        for place, sample in enumerate(row.samples, start=1):
            first, end = batch.response_offsets[sample], cursor + int(fed[sample])
            ids[number, cursor:end] = batch.response_ids[first : first + end - cursor]
            positions[number, cursor:end] = np.arange(len(prompt), len(prompt) + end - cursor)
            answer[number, cursor:end] = place
            places.append((sample, number * width + len(prompt), number * width + cursor))
            cursor = end
    source, index, sample_of = _predictions(batch, places)
    return ForwardInput(
        input_ids=torch.tensor(ids),
        position_ids=torch.tensor(positions),
        visible=visible_keys(torch.tensor(answer)) if shares else None,
        source=torch.tensor(source),
        target=torch.tensor(batch.response_ids[index]),
        response_index=torch.tensor(index),
        sample_of=torch.tensor(sample_of),
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
