"""Where the rows of ``metrics.jsonl`` go besides: TensorBoard, Weights & Biases, trackio.

row ──► metrics.jsonl (first, and always) ──► each tracker ──► reporter

A tracker that cannot start ends the run before anything else is started. One that fails later is said and gets no more rows:
the run does not depend on it, and nothing is lost, since the file has every row.
"""

import math
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from miles.config.options.run import RunOptions
from miles.errors import TrackerError
from miles.types import Metrics


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What trackers are told of a run.

    folder: its name names the run; what a tracker keeps lies inside.
    first_step: the first that is written now; a resumed run may have written it and later ones before.
    values: options and what follows from them as text, secrets masked.
    """

    folder: Path
    options: RunOptions
    first_step: int
    values: Mapping[str, str]


class Tracker(Protocol):
    """One place that rows go to."""

    name: str

    def log(self, row: Metrics, step: int) -> None:
        """Take the finite numbers of a row; ``step`` is the rollouts that were trained by then.

        Raises:
            TrackerError: it cannot.
        """
        ...

    def close(self, *, failed: bool) -> None:
        """Bring what was taken to its place; ``failed`` says how the run ended.

        Raises:
            TrackerError: it cannot.
        """
        ...


class Trackers(AbstractContextManager["Trackers"]):
    """All trackers of a run; those that fail are left out, and ``say`` tells the user."""

    def __init__(self, trackers: list[Tracker], say: Callable[[str], None]) -> None:
        self._trackers, self._say = trackers, say

    def log(self, row: Metrics) -> None:
        """Hand a row to every tracker."""
        finite = {key: value for key, value in row.items() if math.isfinite(value)}
        for tracker in list(self._trackers):
            try:
                tracker.log(finite, int(row["rollout_id"]) + 1)
            except TrackerError as error:
                self._trackers.remove(tracker)
                self._say(f"{error} It gets no more rows; metrics.jsonl has them all")
                self._close(tracker, failed=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for tracker in self._trackers:
            self._close(tracker, failed=error is not None)

    def _close(self, tracker: Tracker, *, failed: bool) -> None:
        try:
            tracker.close(failed=failed)
        except TrackerError as error:
            self._say(str(error))


def open_trackers(run: TrackedRun, say: Callable[[str], None]) -> Trackers:
    """The trackers that the options ask for, started.

    Raises:
        TrackerError: one cannot start; those before it are closed.
    """
    trackers: list[Tracker] = []
    started = Trackers(trackers, say)
    try:
        for start in _starters(run.options):
            trackers.append(start(run))
    except BaseException as error:
        started.__exit__(type(error), error, None)
        raise
    return started


@contextmanager
def failing_as(name: str, doing: str, remedy: str = "") -> Iterator[None]:
    """Whatever a tracker's library raises becomes a ``TrackerError`` with its words."""
    try:
        yield
    except TrackerError as error:
        raise TrackerError(f"{name} could not {doing}: {error}. {remedy}".rstrip()) from error
    except Exception as error:
        words = f"{name} could not {doing}: {type(error).__name__}: {str(error).rstrip('.')}."
        raise TrackerError(f"{words} {remedy}".rstrip()) from error


def _starters(options: RunOptions) -> Iterator[Callable[[TrackedRun], Tracker]]:
    """Imported here, since their libraries are optional, and may be there and broken."""
    if options.use_tensorboard:
        with failing_as("TensorBoard", "start"):
            from miles.tracking.tensorboard_files import TensorBoardFiles
        yield TensorBoardFiles
    if options.use_wandb:
        with failing_as("Weights & Biases", "start"):
            from miles.tracking.wandb_run import WandbRun
        yield WandbRun
    if options.use_trackio:
        with failing_as("trackio", "start"):
            from miles.tracking.trackio_run import TrackioRun
        yield TrackioRun


def id_of(folder: Path, file_name: str) -> str:
    """What a run folder's run is called elsewhere: made at the first start, and written whole or not at all."""
    path = folder / file_name
    if not path.exists():
        aside = path.with_suffix(".tmp")
        aside.write_text(uuid.uuid4().hex[:8])
        aside.replace(path)
    return path.read_text().strip()
