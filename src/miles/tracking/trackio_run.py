"""trackio: one run in its local database for each run folder, over all starts; what it prints is in ``<run>/trackio.log``."""

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import trackio

from miles.tracking.trackers import TrackedRun, failing_as, id_of
from miles.types import Metrics

ID_FILE = "trackio_id"


class TrackioRun:
    """Logs each row at the rollouts that were trained by then."""

    name = "trackio"

    def __init__(self, run: TrackedRun) -> None:
        """Start a run, or go on with that of the folder.

        Raises:
            TrackerError: its database cannot be written.
        """
        self._log = run.folder / "trackio.log"
        with failing_as(self.name, "start"), printing_to(self._log):
            name = f"{run.folder.name}-{id_of(run.folder, ID_FILE)}"  # a folder's name alone may be another run's, too
            project, values = run.options.tracking_project, dict(run.values)
            self._run = trackio.init(project=project, name=name, config=values, resume="allow", embed=False)

    def log(self, row: Metrics, step: int) -> None:
        """Hand the row to the library's own thread."""
        with failing_as(self.name, "take a row"):
            self._run.log(dict(row), step=step)

    def close(self, *, failed: bool) -> None:
        """Write what is pending."""
        with failing_as(self.name, "write its last rows"), printing_to(self._log):
            self._run.finish()


@contextmanager
def printing_to(file: Path) -> Iterator[None]:
    """The library prints; the terminal shows the run."""
    with file.open("a") as log, redirect_stdout(log):
        yield
