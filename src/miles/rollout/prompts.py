"""Prompts: an endless order of issue over the epochs of a JSONL file, checked as a whole before anything starts.

``prompt(i)`` is a pure function of ``i``: epoch ``i // n``, and within the epoch the i-th line, or the i-th of a
permutation that depends on nothing but the seed and the epoch. A resumed run therefore needs no cursor but the ledger's.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from miles.rollout.ledger import Ledger
from miles.rollout.prompt_lines import PromptFormat, PromptLine, Tokenizer, read_lines
from miles.types import Prompt

__all__ = ["PromptFormat", "PromptSource", "Tokenizer"]


@dataclass(frozen=True, slots=True)
class PromptOrder:
    """Which line comes when. num_rows: lines with a prompt; seed: None keeps the file's order."""

    num_rows: int
    seed: int | None = None

    def permutation(self, epoch: int) -> Sequence[int]:
        """The order of one epoch."""
        rows = list(range(self.num_rows))
        if self.seed is not None:
            random.Random(f"{self.seed}/{epoch}").shuffle(rows)
        return rows


class PromptSource:
    """The prompts of one file."""

    def __init__(self, lines: Sequence[PromptLine], seed: int | None = None) -> None:
        self._lines = lines
        self._order = PromptOrder(len(lines), seed)
        self._epochs: dict[int, Sequence[int]] = {}

    @classmethod
    def from_jsonl(
        cls, path: Path, tokenizer: Tokenizer, line_format: PromptFormat, shuffle_seed: int | None = None
    ) -> "PromptSource":
        """Read and check the whole file; ``shuffle_seed`` reshuffles every epoch.

        Raises:
            DataError: the file or some of its lines cannot be used; all of them are named, the first 20 in full.
        """
        return cls(read_lines(path, tokenizer, line_format), shuffle_seed)

    def __len__(self) -> int:
        """Prompts in one epoch."""
        return len(self._lines)

    def prompt(self, index: int) -> Prompt:
        """The prompt at a place in the order of issue, counted over all epochs from 0."""
        epoch, position = divmod(index, len(self._lines))
        line = self._lines[self._permutation(epoch)[position]]
        return Prompt(index, line.row, epoch, line.text, line.token_ids, line.label, line.metadata)

    def reserve(self, ledger: Ledger) -> Prompt:
        """The prompt that is due next by the ledger, which now counts it as in flight."""
        return self.prompt(ledger.reserve())

    def state(self, ledger: Ledger) -> None:
        """Nothing: the ledger's snapshot says all."""

    def restore(self, state: None) -> None:
        """There is nothing to go on from but the ledger."""

    def all_prompts(self) -> tuple[Prompt, ...]:
        """Every prompt once, in the order of epoch 0."""
        return tuple(self.prompt(index) for index in range(len(self)))

    def _permutation(self, epoch: int) -> Sequence[int]:
        if epoch not in self._epochs:
            recent = {known: rows for known, rows in self._epochs.items() if abs(known - epoch) <= 1}
            self._epochs = recent | {epoch: self._order.permutation(epoch)}
        return self._epochs[epoch]
