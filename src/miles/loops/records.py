"""What a loop writes: rows for whoever watches, checkpoints for whoever resumes."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from miles.errors import MilesError
from miles.rollout.group_file import write_groups
from miles.tracking.metrics_file import MetricsFile, evals_in
from miles.tracking.reporter import Reporter
from miles.tracking.run_folder import GROUPS_FILE, RunFolder, RunState, write_state
from miles.tracking.trackers import Trackers
from miles.types import Group, Metrics


@dataclass(slots=True)
class RunJournal:
    """Writes each row to metrics.jsonl first, then tells trackers and reporter; remembers the first and last evaluation.

    evaluations: rows of evaluations by the weight version that was measured.
    """

    metrics: MetricsFile
    reporter: Reporter
    total: int
    trackers: Trackers = field(default_factory=lambda: Trackers([], lambda line: None))
    first_eval: Metrics = field(default_factory=dict)
    last_eval: Metrics = field(default_factory=dict)
    evaluations: dict[int, Metrics] = field(default_factory=dict)

    def write(self, row: Metrics, rollouts_done: int) -> None:
        """One line of metrics.jsonl."""
        self.metrics.write(row)
        self.trackers.log(row)
        results = evals_in(row)
        self.first_eval = self.first_eval or results
        self.last_eval = results or self.last_eval
        if "eval/weight_version" in row:
            self.evaluations[int(row["eval/weight_version"])] = dict(row)
        self.reporter.progress(row, rollouts_done, self.total)


class SnapshotLedger(Protocol):
    """A ledger that can be written down."""

    def snapshot(self) -> dict[str, Any]:
        """JSON-able state."""
        ...

    def kept(self) -> tuple[Group, ...]:
        """Groups whose samples go with it."""
        ...


def nothing() -> None:
    """For sources that need no position."""


class SavedPolicy(Protocol):
    """A policy that can be written down, at once or while it is trained."""

    async def save(self, folder: Path) -> None:
        """Write a checkpoint, aside first and then renamed."""
        ...

    async def begin_save(self, folder: Path) -> None:
        """Copy what a checkpoint holds, to be written while training goes on."""
        ...

    async def finish_save(self) -> None:
        """Return when the checkpoint begun last is written."""
        ...


@dataclass(slots=True)
class CheckpointSaver:
    """Policy, ledger and finished groups of one moment; ``latest`` moves only when all are on disk.

    source_state: position of where prompts come from, JSON-able.
    say: tells the user of a checkpoint that could not be written in the background; the next ``save`` raises it.
    in_background: ``save`` returns once the moment is copied; the one before is waited for first.
    """

    folder: RunFolder
    policy: SavedPolicy
    ledger: SnapshotLedger
    say: Callable[[str], None]
    in_background: bool = False
    source_state: Callable[[], Any] = nothing
    _writing: "asyncio.Task[None] | None" = None

    async def save(self, rollouts_done: int, weight_version: int, *, weights_published: bool) -> None:
        """Write ``checkpoints/rollout-N`` and point ``latest`` at it; production may go on meanwhile.

        Raises:
            CheckpointError: it cannot be written, or the one before could not.
        """
        checkpoint = self.folder.checkpoint_for(rollouts_done - 1)
        await self.settle()
        await (self.policy.begin_save(checkpoint) if self.in_background else self.policy.save(checkpoint))
        # of the same moment: nothing is awaited between
        snapshot, groups, source = self.ledger.snapshot(), self.ledger.kept(), self.source_state()
        state = RunState(rollouts_done, weight_version, snapshot, weights_published, source=source)
        if self.in_background:
            self._writing = asyncio.create_task(self._finish(checkpoint, state, groups), name=f"write {checkpoint.name}")
        else:
            await self._complete(checkpoint, state, groups)

    async def settle(self) -> None:
        """Wait for the checkpoint that is being written.

        Raises:
            CheckpointError: it could not be.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            await writing

    async def _finish(self, checkpoint: Path, state: RunState, groups: Sequence[Group]) -> None:
        try:
            await self.policy.finish_save()
            await self._complete(checkpoint, state, groups)
        except (MilesError, OSError) as error:
            self.say(str(error))
            raise

    async def _complete(self, checkpoint: Path, state: RunState, groups: Sequence[Group]) -> None:
        """The parts beside the policy's, then the pointer."""
        digest = await asyncio.to_thread(write_groups, checkpoint / GROUPS_FILE, groups)
        write_state(checkpoint, replace(state, groups_digest=digest))
        self.folder.point_latest_at(checkpoint)
