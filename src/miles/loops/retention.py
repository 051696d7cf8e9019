"""Which checkpoints stay when a newer one is written: the newest so many, and the best by an evaluation."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

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


class Awaited(Protocol):
    """Evaluations that run beside training."""

    @property
    def pending(self) -> frozenset[int]:
        """Versions whose result is still to come."""
        ...


@dataclass(frozen=True, slots=True)
class RetainingSaver:
    """Saves by another saver, then removes what a later save has made superfluous.

    metric: key of an evaluation's row (``eval/reverse``) whose best checkpoint stays, too; a checkpoint has a score only if
    its own weights were evaluated. sign: −1 where the lowest is the best.
    awaited: says which versions' evaluations are still running; their checkpoints stay until those have ended.
    versions: checkpoint → the version that its weights were published under, of this start.
    """

    saver: Saver
    folder: RunFolder
    journal: RunJournal
    keep: int
    metric: str | None
    sign: int = 1
    awaited: Awaited | None = None
    versions: dict[str, int] = field(default_factory=dict)

    async def save(self, rollouts_done: int, weight_version: int, *, weights_published: bool) -> None:
        """Save, remember the scores that are known, remove.

        Raises:
            CheckpointError: as the saver, or an old checkpoint cannot be removed.
        """
        await self.saver.save(rollouts_done, weight_version, weights_published=weights_published)
        if weights_published:
            self.versions[self.folder.checkpoint_for(rollouts_done - 1).name] = weight_version
        self._remove()

    async def settle(self) -> None:
        """Wait for the checkpoint that is being written; then others may have to go, by the scores known by now.

        Raises:
            CheckpointError: as the saver, or an old checkpoint cannot be removed.
        """
        await self.saver.settle()
        self._remove()

    def _remove(self) -> None:
        awaited = self.awaited.pending if self.awaited else frozenset()
        names = sorted(path.name for path in self.folder.checkpoints.glob("rollout-*"))
        try:
            for name in superseded(names, self._scores(), self.keep):
                if self.versions.get(name) not in awaited:
                    shutil.rmtree(self.folder.checkpoints / name)
        except OSError as error:
            raise CheckpointError(
                f"old checkpoints in {self.folder.checkpoints} could not be removed: {error}. The new one is whole; "
                "make the folder writable or leave --keep-checkpoints out."
            ) from error

    def _scores(self) -> dict[str, float]:
        """Scores of all checkpoints, those added whose weights have been evaluated since."""
        path: Path = self.folder.checkpoints / SCORES_FILE
        before: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        rows = {name: self.journal.evaluations.get(version, {}) for name, version in self.versions.items()}
        known = {name: self.sign * row[self.metric] for name, row in rows.items() if self.metric in row}
        if before != before | known:
            path.write_text(json.dumps(before | known))
        return before | known
