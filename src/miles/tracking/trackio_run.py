"""trackio: one run in its local database for each run folder, over all starts; what it prints is in ``<run>/trackio.log``."""

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import trackio

from miles.tracking.trackers import TrackedRun, failing_as
from miles.types import Metrics


class TrackioRun:
    """Logs each row at the rollouts that were trained by then."""

    name = "trackio"

    def __init__(self, run: TrackedRun) -> None:
        """Start a run, or go on with the one of the folder's name.

        Raises:
            TrackerError: its database cannot be written.
        """
        self._log = run.folder / "trackio.log"
        with failing_as(self.name, "start"), printing_to(self._log):
            project, values = run.options.tracking_project, dict(run.values)
            self._run = trackio.init(project=project, name=run.folder.name, config=values, resume="allow", embed=False)

    def log(self, row: Metrics, step: int) -> None:
        """Hand the row to the library's own thread."""
        with failing_as(self.name, "take a row"):
            self._run.log(dict(row), step=step)

    def close(self) -> None:
        """Write what is pending."""
        with failing_as(self.name, "write its last rows"), printing_to(self._log):
            self._run.finish()


@contextmanager
def printing_to(file: Path) -> Iterator[None]:
    """The library prints; the terminal shows the run."""
    with file.open("a") as log, redirect_stdout(log):
        yield
