"""``trace.json``: what the run did when, for chrome://tracing or Perfetto.

The file is the open-ended array form of the trace format: each event is appended as it ends, so a killed run
leaves a readable trace.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import orjson

from miles.clock import Clock

LANES = {"policy": 1, "rollout": 2, "weights": 3, "evaluation": 4, "checkpoint": 5}


class Spans(Protocol):
    """What a loop needs of a trace."""

    def span(self, lane: str, name: str, **args: int | float | str) -> AbstractContextManager[None]:
        """Record how long the body takes."""
        ...


class Trace:
    """Appends spans to a Chrome trace."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self.problem = ""
        fresh = not path.exists() or path.stat().st_size == 0
        self._file = path.open("ab", buffering=0)
        if fresh:
            names = [event("thread_name", tid, "M", args={"name": lane}) for lane, tid in LANES.items()]
            self._append(b"[\n" + b"".join(names))
        self._start = clock.now()

    @contextmanager
    def span(self, lane: str, name: str, **args: int | float | str) -> Iterator[None]:
        """Record how long the body takes, also when it fails."""
        begin = self._clock.now()
        try:
            yield
        finally:
            micros = (begin - self._start) * 1e6
            self._append(event(name, LANES[lane], "X", ts=micros, dur=(self._clock.now() - begin) * 1e6, args=args))

    def _append(self, line: bytes) -> None:
        """A trace is not worth a run: where the disk is full it ends here, and says so in ``problem``."""
        if self.problem:
            return
        try:
            self._file.write(line)
        except OSError as error:
            self.problem = f"trace.json ends early: {error}"

    def close(self) -> None:
        """Close the file; the array stays open, as the format allows."""
        self._file.close()


def event(name: str, tid: int, phase: str, **more: object) -> bytes:
    """One event line of the trace event format."""
    return orjson.dumps({"name": name, "ph": phase, "pid": 1, "tid": tid, **more}) + b",\n"
