"""What a run tells whoever watches it; the command line draws it, tests collect it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from miles.types import Metrics


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How a run ended.

    exit_code: 0 done, 1 failed, 130 interrupted.
    first_eval, last_eval: evaluation results by data set name.
    """

    run_dir: Path
    exit_code: int
    num_rollouts_done: int
    seconds: float
    first_eval: Metrics
    last_eval: Metrics
    checkpoint: Path | None = None
    reason: str = ""


class Reporter(Protocol):
    """Receives a run's events, in order, on the driver's event loop; must not block."""

    def stage(self, text: str) -> None:
        """A start-up or shut-down stage begins (``starting Ray``)."""
        ...

    def progress(self, row: Metrics, done: int, total: int) -> None:
        """A rollout was trained, or an evaluation ended; ``row`` is the line written to metrics.jsonl."""
        ...

    def note(self, text: str) -> None:
        """Something the user should know: a warning, or who waits for whom."""
        ...

    def finished(self, summary: RunSummary) -> None:
        """The run has ended and everything is written."""
        ...


class SilentReporter:
    """Ignores everything."""

    def stage(self, text: str) -> None:
        """Ignore."""

    def progress(self, row: Metrics, done: int, total: int) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""

    def finished(self, summary: RunSummary) -> None:
        """Ignore."""
