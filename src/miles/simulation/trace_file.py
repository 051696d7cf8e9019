"""``trace.json`` of a run, read again: spans with the CPU time of every role, the machine, and what the engines' steps cost."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from miles.tracking.trace import ENGINE_WORK, MACHINE


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """cpu_began, cpu_ended: CPU seconds of each role so far."""

    seconds: float
    cpu_began: dict[str, float]
    cpu_ended: dict[str, float]

    def cpu_of(self, role: str) -> float:
        """What the role used within it."""
        return self.cpu_ended[role] - self.cpu_began[role]


@dataclass(slots=True)
class RecordedTrace:
    """The last start of a run. spans: by kind (``rollout``, ``step``, ``stage``, ``publish``) and number."""

    cores: int | None = None
    engine_work: list[dict[str, Any]] = field(default_factory=list)
    spans: dict[str, dict[int, RecordedSpan]] = field(default_factory=dict)

    def knows(self, roles: Iterable[str], least_steps: int) -> bool:
        """Whether it says what computing costs: its engines counted their steps, and every span has the CPU time of the roles."""
        spans = [span for of_kind in self.spans.values() for span in of_kind.values()]
        told = all(role in span.cpu_began and role in span.cpu_ended for span in spans for role in roles)
        long_enough = all(len(self.spans.get(kind, {})) >= least_steps for kind in ("rollout", "step"))
        counted = "publish" in self.spans and any(work["num_answers"] for work in self.engine_work)
        return bool(self.cores) and told and long_enough and counted

    def seconds(self, kind: str) -> float:
        """Median length of the spans of a kind after the first; 0 where there are none."""
        return statistics.median([span.seconds for span in self._after_the_first(kind)] or [0.0])

    def cpu(self, kind: str, role: str) -> float:
        """Median CPU seconds of a role within them."""
        return statistics.median([span.cpu_of(role) for span in self._after_the_first(kind)] or [0.0])

    def cpu_from_one_to_the_next(self, kind: str, role: str) -> float:
        """Median CPU seconds of a role between the beginnings of two of them, one after the other."""
        began = {number: span.cpu_began[role] for number, span in self.spans.get(kind, {}).items() if role in span.cpu_began}
        return statistics.median([began[n + 1] - began[n] for n in began if n + 1 in began] or [0.0])

    def _after_the_first(self, kind: str) -> list[RecordedSpan]:
        of_kind = self.spans.get(kind, {})
        return [of_kind[number] for number in sorted(of_kind)[1:]]


def read_trace(path: Path) -> RecordedTrace:
    """What the last start wrote; nothing where there is no file. A line that a killed run left unfinished is left out."""
    found = RecordedTrace()
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            event = orjson.loads(line.rstrip(b","))
        except orjson.JSONDecodeError:
            continue
        if not isinstance(event, dict):
            continue
        if event["name"] == MACHINE:
            found = RecordedTrace(cores=event["args"]["cores"])
        elif event["name"] == ENGINE_WORK:
            found.engine_work.append(event["args"])
        elif event["ph"] == "X":
            note_span(found, event)
    return found


def note_span(trace: RecordedTrace, event: dict[str, Any]) -> None:
    """Keep a span that is named by its kind and number."""
    kind, _, number = event["name"].partition(" ")
    if number.isdigit():
        args = event["args"]
        span = RecordedSpan(event["dur"] / 1e6, args.get("cpu_began", {}), args.get("cpu_ended", {}))
        trace.spans.setdefault(kind, {})[int(number)] = span
