"""Evaluation beside training: a snapshot of the published weights is measured while the run goes on.

loop     ─step 9─▲ ─step 10─▲ ─step 11─▲ ─step 12─▲           one snapshot is measured at a time; a point that comes due
snapshot         └═══ measure version 10 ═══│                meanwhile waits for it or is skipped, the last one never
row                                         └─ eval/… of version 10, in the order of completion
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from miles.clock import Clock
from miles.errors import MilesError, RolloutError
from miles.tracking.trace import Spans
from miles.types import Metrics

Measure = Callable[[Path, int], Awaitable[Metrics]]
"""``(folder, weight_version)``: measures the weights in an HF folder."""


class Snapshots(Protocol):
    """Holds weights."""

    async def take(self, version: int) -> Path:
        """A folder with the weights that are published now."""
        ...

    def lend(self, held: Path, name: str) -> Path:
        """The same folder once more."""
        ...


@dataclass(frozen=True, slots=True)
class Point:
    """Where in the run an evaluation is due. write: takes the row of this point."""

    rollouts_done: int
    version: int
    is_last: bool
    write: Callable[[Metrics], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """skips: a point that comes due while another is measured is left out. timeout_seconds: of each evaluation."""

    skips: bool
    timeout_seconds: float


class Beside:
    """Owns the evaluation that is running, if there is one.

    measure: what is called with a snapshot, and does away with it.
    """

    def __init__(
        self,
        measure: Measure,
        snapshots: Snapshots,
        limits: Limits,
        clock: Clock,
        trace: Spans,
        say: Callable[[str], None],
    ) -> None:
        self._measure, self._snapshots, self._limits = measure, snapshots, limits
        self._clock, self._trace, self._say = clock, trace, say
        self._held: dict[int, Path] = {}
        self._point: Point | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pending(self) -> frozenset[int]:
        """Versions whose result is still to come."""
        return frozenset() if self._point is None else frozenset({self._point.version})

    async def hold(self, version: int) -> None:
        """Pin the weights, which are the published ones now, for an evaluation that comes before the next publication.

        Raises:
            MilesError: they cannot be pinned.
        """
        for path in self._held.values():
            shutil.rmtree(path, ignore_errors=True)
        self._held = {version: await self._snapshots.take(version)}

    async def begin(self, point: Point) -> None:
        """Start measuring the weights held; first wait for the evaluation before, or leave this one out.

        Raises:
            MilesError: the evaluation before failed.
        """
        if self._point is not None and self._limits.skips and not point.is_last:
            still = f"that of version {self._point.version} is still running (--eval-overflow skip)"
            self._leave_out(point, still)
            return
        await self.drain()
        folder = self._snapshots.lend(self._held[point.version], f"after-{point.rollouts_done}")
        self._point = point
        self._task = asyncio.create_task(self._measured(point, folder), name=f"evaluation of version {point.version}")

    def check(self) -> None:
        """Tell of an evaluation that failed meanwhile.

        Raises:
            MilesError: it did; the cause is named.
        """
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()

    async def drain(self) -> None:
        """Wait for the evaluation that is running; it has a time limit.

        Raises:
            MilesError: it failed.
        """
        if self._task is not None:
            await asyncio.wait([self._task])
        self.check()

    async def close(self) -> None:
        """Give up what is running; a point that is not measured is told of."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    async def _measured(self, point: Point, folder: Path) -> None:
        begin = self._clock.now()
        try:
            with self._trace.span("evaluation", f"evaluate version {point.version}"):
                async with asyncio.timeout(self._limits.timeout_seconds) as limit:
                    row = await self._measure(folder, point.version)
            point.write(row | {"eval/weight_version": point.version, "perf/eval_time": self._clock.now() - begin})
        except asyncio.CancelledError:
            self._leave_out(point, "the run ends")
            raise
        except MilesError:
            raise
        except Exception as error:
            if not limit.expired():
                raise RolloutError(f"the evaluation failed: {type(error).__name__}: {error}") from error
            self._leave_out(point, f"it took longer than {self._limits.timeout_seconds:g} s (--eval-timeout-seconds)")
        finally:
            self._point = None

    def _leave_out(self, point: Point, why: str) -> None:
        point.write({"eval/skipped/weight_version": float(point.version)})
        self._say(f"the evaluation after rollout {point.rollouts_done - 1} (version {point.version}) is left out: {why}")
