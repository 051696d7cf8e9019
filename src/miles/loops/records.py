"""What a loop writes: rows for whoever watches, checkpoints for whoever resumes."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from miles.rollout.group_file import write_groups
from miles.tracking.metrics_file import MetricsFile, evals_in
from miles.tracking.reporter import Reporter
from miles.tracking.run_folder import GROUPS_FILE, RunFolder, RunState, write_state
from miles.types import Group, Metrics


class SavedPolicy(Protocol):
    """A policy that can be written down."""

    async def save(self, folder: Path) -> None:
        """Write a checkpoint, aside first and then renamed."""
        ...


class SnapshotLedger(Protocol):
    """A ledger that can be written down."""

    def snapshot(self) -> dict[str, Any]:
        """JSON-able state."""
        ...

    def finished(self) -> tuple[Group, ...]:
        """Groups whose samples go with it."""
        ...


@dataclass(slots=True)
class RunJournal:
    """Writes each row to metrics.jsonl first, then tells the reporter; remembers the first and last evaluation."""

    metrics: MetricsFile
    reporter: Reporter
    total: int
    first_eval: Metrics = field(default_factory=dict)
    last_eval: Metrics = field(default_factory=dict)
    last_eval_row: Metrics = field(default_factory=dict)

    def write(self, row: Metrics, rollouts_done: int) -> None:
        """One line of metrics.jsonl."""
        self.metrics.write(row)
        results = evals_in(row)
        self.first_eval = self.first_eval or results
        self.last_eval = results or self.last_eval
        self.last_eval_row = dict(row) if results else self.last_eval_row
        self.reporter.progress(row, rollouts_done, self.total)


@dataclass(frozen=True, slots=True)
class CheckpointSaver:
    """Policy, ledger and finished groups of one moment; ``latest`` moves only when all are on disk."""

    folder: RunFolder
    policy: SavedPolicy
    ledger: SnapshotLedger

    async def save(self, rollouts_done: int, weight_version: int, *, weights_published: bool) -> None:
        """Write ``checkpoints/rollout-N`` and point ``latest`` at it; production may go on meanwhile."""
        checkpoint = self.folder.checkpoint_for(rollouts_done - 1)
        await self.policy.save(checkpoint)
        snapshot, groups = self.ledger.snapshot(), self.ledger.finished()  # of the same moment: nothing is awaited between
        digest = await asyncio.to_thread(write_groups, checkpoint / GROUPS_FILE, groups)
        write_state(checkpoint, RunState(rollouts_done, weight_version, snapshot, weights_published, digest))
        self.folder.point_latest_at(checkpoint)
