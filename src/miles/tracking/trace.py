"""``trace.json``: what the run did when, for chrome://tracing or Perfetto.

The file is the open-ended array form of the trace format: each event is appended as it ends, so a killed run
leaves a readable trace. Beside the spans it says what the machine is and, for each span, what CPU time the processes of the run
had used when it began and when it ended; ``miles simulate --trace`` learns from that.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import orjson

from miles.clock import Clock
from miles.tracking.cpu_clocks import CpuClocks, num_cores

MACHINE, ENGINE_WORK = "machine", "engine_work"
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
        self._cpu: CpuClocks | None = None
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
        begin, cpu_began = self._clock.now(), self._cpu_seconds()
        try:
            yield
        finally:
            micros, cpu_ended = (begin - self._start) * 1e6, self._cpu_seconds()
            cpu = {"cpu_began": cpu_began, "cpu_ended": cpu_ended} if cpu_began and cpu_ended else {}
            self._append(event(name, LANES[lane], "X", ts=micros, dur=(self._clock.now() - begin) * 1e6, args=args | cpu))

    def watch_cpu(self, clocks: CpuClocks) -> None:
        """Spans that begin from now on say the CPU seconds of these processes."""
        self._cpu = clocks
        self.note(MACHINE, {"cores": num_cores()})

    def note(self, name: str, facts: Mapping[str, Any]) -> None:
        """Something that is no span, JSON-able."""
        self._append(event(name, 0, "M", args=dict(facts)))

    def _cpu_seconds(self) -> dict[str, float]:
        return {} if self._cpu is None else self._cpu.read()

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
