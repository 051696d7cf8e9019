"""``last_start.json``: when and by which process a run was started last, and how that ended; read by ``miles runs``.

started ──► {pid, host, started} ──► … the run … ──► {…, ended, exit_code, reason}      a killed run never gets there
"""

import datetime
import json
import os
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path

FILE_NAME = "last_start.json"
LONGEST_REASON = 2000  # characters
SLACK_SECONDS = 1.0  # between the clocks of the file and of the process table


@dataclass(frozen=True, slots=True)
class LastStart:
    """One start of a run.

    started, ended: ISO times in UTC; ``ended`` is empty as long as nobody has said that it ended.
    exit_code: None likewise.
    reason: why it failed; empty where it did not.
    """

    pid: int
    host: str
    started: str
    ended: str = ""
    exit_code: int | None = None
    reason: str = ""

    def is_alive(self) -> bool:
        """Whether its process is still there; one of another host is taken to be."""
        import psutil

        if self.exit_code is not None:
            return False
        if self.host != socket.gethostname():
            return True
        try:
            began = psutil.Process(self.pid).create_time()
        except psutil.Error:
            return False
        return began <= datetime.datetime.fromisoformat(self.started).timestamp() + SLACK_SECONDS


def note_start(folder: Path) -> LastStart:
    """Write down that this process has started the run."""
    start = LastStart(os.getpid(), socket.gethostname(), _now())
    _write(folder, start)
    return start


def note_end(folder: Path, start: LastStart, exit_code: int, reason: str) -> str:
    """Write down how it ended; why that could not be written, empty where it could."""
    try:
        _write(folder, replace(start, ended=_now(), exit_code=exit_code, reason=reason[:LONGEST_REASON]))
    except OSError as error:
        return f"{folder / FILE_NAME} could not be written: {error}"
    return ""


def read_last_start(folder: Path) -> LastStart | None:
    """The last start of the run in a folder; None where it says nothing that can be read."""
    try:
        return LastStart(**json.loads((folder / FILE_NAME).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _write(folder: Path, start: LastStart) -> None:
    aside = folder / f"{FILE_NAME}.tmp"
    aside.write_text(json.dumps(asdict(start), indent=2, ensure_ascii=False) + "\n")
    aside.replace(folder / FILE_NAME)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
