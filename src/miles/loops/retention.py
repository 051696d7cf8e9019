"""Which checkpoints stay when a newer one is written: the newest so many, and the best by an evaluation."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miles.errors import CheckpointError
from miles.loops.parts import Saver
from miles.loops.records import RunJournal
from miles.tracking.run_folder import RunFolder

SCORES_FILE = "scores.json"


def superseded(names: Sequence[str], scores: Mapping[str, float], keep: int) -> list[str]:
    """Checkpoints that go: all but the newest ``keep`` and the one with the highest score, the newer of two equals.

    Args:
        names: of checkpoints, oldest first.
        scores: of those that were evaluated.
        keep: at least 1.
    """
    best = max((name for name in reversed(names) if name in scores), key=lambda name: scores[name], default=None)
    return [name for name in names[:-keep] if name != best]


@dataclass(frozen=True, slots=True)
class RetainingSaver:
    """Saves by another saver, then removes what a later save has made superfluous.

    metric: key of an evaluation's row (``eval/reverse``) whose best checkpoint stays, too; a checkpoint has a score only if
    its own weights were evaluated. sign: −1 where the lowest is the best.
    """

    saver: Saver
    folder: RunFolder
    journal: RunJournal
    keep: int
    metric: str | None
    sign: int = 1

    async def save(self, rollouts_done: int, weight_version: int, **more: Any) -> None:
        """Save, remember the score, remove.

        Raises:
            CheckpointError: as the saver, or an old checkpoint cannot be removed.
        """
        await self.saver.save(rollouts_done, weight_version, **more)
        self._remove(self._scores(self.folder.checkpoint_for(rollouts_done - 1).name, weight_version))

    async def settle(self) -> None:
        """Wait for the checkpoint that is being written; then others may have to go.

        Raises:
            CheckpointError: as the saver, or an old checkpoint cannot be removed.
        """
        await self.saver.settle()
        self._remove(self._known_scores())

    def _remove(self, scores: Mapping[str, float]) -> None:
        names = sorted(path.name for path in self.folder.checkpoints.glob("rollout-*"))
        try:
            for name in superseded(names, scores, self.keep):
                shutil.rmtree(self.folder.checkpoints / name)
        except OSError as error:
            raise CheckpointError(
                f"old checkpoints in {self.folder.checkpoints} could not be removed: {error}. The new one is whole; "
                "make the folder writable or leave --keep-checkpoints out."
            ) from error

    def _scores(self, name: str, weight_version: int) -> dict[str, float]:
        """Scores of all checkpoints, that of ``name`` added where its weights are those evaluated last."""
        scores = self._known_scores()
        row = self.journal.last_eval_row
        if self.metric is not None and self.metric in row and row.get("eval/weight_version") == weight_version:
            scores[name] = self.sign * row[self.metric]
            self._file.write_text(json.dumps(scores))
        return scores

    @property
    def _file(self) -> Path:
        return self.folder.checkpoints / SCORES_FILE

    def _known_scores(self) -> dict[str, float]:
        """Scores written so far."""
        return json.loads(self._file.read_text()) if self._file.exists() else {}
