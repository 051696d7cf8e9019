"""TensorBoard: event files in ``<run>/tensorboard``, written without torch. A resumed run hides the rows that it writes again."""

import time

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from miles.tracking.trackers import TrackedRun, failing_as
from miles.types import Metrics

FOLDER = "tensorboard"


class TensorBoardFiles:
    """Appends one event a row; the library's thread writes it."""

    name = "TensorBoard"

    def __init__(self, run: TrackedRun) -> None:
        """Open a new event file.

        Raises:
            TrackerError: it cannot be written.
        """
        with failing_as(self.name, "start"):
            self._writer = EventFileWriter(str(run.folder / FOLDER))
            start = SessionLog(status=SessionLog.START)  # TensorBoard drops earlier events from this step on
            self._writer.add_event(Event(wall_time=time.time(), step=run.first_step, session_log=start))
            self._writer.flush()

    def log(self, row: Metrics, step: int) -> None:
        """Append an event; a full disk shows at one of the next."""
        values = [Summary.Value(tag=key, simple_value=value) for key, value in row.items()]
        with failing_as(self.name, "write"):
            self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self, *, failed: bool) -> None:
        """Write what is pending."""
        with failing_as(self.name, "write its last rows"):
            self._writer.close()
