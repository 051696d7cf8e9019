"""Simulated engines: slots, decode steps shared by all running samples, pauses for updates, a version for every token.

Between two events (a sample arrives or ends, a pause, an update) an engine takes whole decode steps of equal length, so time
jumps from event to event and not from token to token.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from miles.clock import Clock
from miles.simulation.workload import Speeds
from miles.types import VersionSpan

Spans = tuple[VersionSpan, ...]


@dataclass(eq=False, slots=True)
class Decoding:
    """A sample at an engine. done: tokens sampled so far; ended: resolves with the spans of versions."""

    length: int
    ended: "asyncio.Future[Spans]"
    done: int = 0
    spans: list[VersionSpan] = field(default_factory=list)

    def advance(self, steps: int, version: int) -> None:
        """So many more tokens under ``version``."""
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = self.spans[-1]._replace(end=self.done + steps)
        else:
            self.spans.append(VersionSpan(version, self.done, self.done + steps))
        self.done += steps


class SimulatedEngine:
    """One engine. busy_seconds: time spent decoding; slot_seconds: the same, times the samples that were running."""

    def __init__(self, clock: Clock, speeds: Speeds, slots: int) -> None:
        self.version, self.paused, self.busy_seconds, self.slot_seconds = 0, False, 0.0, 0.0
        self._clock, self._speeds, self._slots = clock, speeds, slots
        self._queue: deque[Decoding] = deque()
        self._running: list[Decoding] = []
        self._event = asyncio.Event()

    @property
    def num_in_flight(self) -> int:
        """Samples running or queued."""
        return len(self._queue) + len(self._running)

    async def generate(self, length: int) -> Spans:
        """The spans of an answer of so many tokens, when it is finished or interrupted; cancelling the call frees its slot."""
        sample = Decoding(length, asyncio.get_running_loop().create_future())
        self._queue.append(sample)
        self._event.set()
        try:
            return await sample.ended
        finally:
            if not sample.ended.done() or sample.ended.cancelled():
                self._forget(sample)

    def steer(self, *, paused: bool) -> None:
        """Stop or go on; the step that is under way ends first."""
        self.paused = paused
        self._event.set()

    def interrupt(self) -> None:
        """End every sample with the tokens that it has."""
        for sample in (*self._queue, *self._running):
            if not sample.ended.done():
                sample.ended.set_result(tuple(sample.spans))
        self._queue.clear()
        self._running.clear()
        self._event.set()

    async def run(self) -> None:
        """Decode until cancelled."""
        while True:
            self._event.clear()
            while self._queue and len(self._running) < self._slots:
                self._running.append(self._queue.popleft())
            if self.paused or not self._running:
                await self._event.wait()
            else:
                await self._decode()

    async def _decode(self) -> None:
        count, version = len(self._running), self.version
        step = self._speeds.decode_step(count)
        steps = await self._steps_until_event(min(sample.length - sample.done for sample in self._running), step)
        self.busy_seconds += steps * step
        self.slot_seconds += steps * step * count
        for sample in self._running:
            sample.advance(steps, version)
        for sample in [sample for sample in self._running if sample.done >= sample.length]:
            self._running.remove(sample)
            if not sample.ended.done():
                sample.ended.set_result(tuple(sample.spans))

    async def _steps_until_event(self, most: int, step: float) -> int:
        """Whole steps taken until something happens, at most so many."""
        began = self._clock.now()
        try:
            async with asyncio.timeout(most * step):
                await self._event.wait()
        except TimeoutError:
            return most
        steps = min(most, int((self._clock.now() - began) / step) + 1)
        await self._clock.sleep(max(0.0, began + steps * step - self._clock.now()))
        return steps

    def _forget(self, sample: Decoding) -> None:
        for holder in (self._queue, self._running):
            if sample in holder:
                holder.remove(sample)
        self._event.set()


class SimulatedFleet:
    """Several engines: a group goes where the fewest samples are in flight, as in ``EngineFleet``."""

    def __init__(self, clock: Clock, speeds: Speeds, num_engines: int, slots: int) -> None:
        self.engines = [SimulatedEngine(clock, speeds, slots) for _ in range(num_engines)]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Let the engines run on the current event loop."""
        self._tasks = [asyncio.create_task(engine.run()) for engine in self.engines]

    async def close(self) -> None:
        """End them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def generate(self, lengths: Sequence[int], *, together: bool) -> list[Spans]:
        """The spans of every answer; ``together`` sends all to one engine."""
        first = self._freest()
        async with asyncio.TaskGroup() as tasks:
            running = []
            for length in lengths:
                running.append(tasks.create_task((first if together else self._freest()).generate(length)))
                if not together:
                    await asyncio.sleep(0)
        return [task.result() for task in running]

    async def interrupt(self) -> None:
        """End every sample with the tokens that it has, everywhere."""
        for engine in self.engines:
            engine.interrupt()

    def publish(self, version: int) -> None:
        """Every engine samples under ``version`` from its next step on."""
        for engine in self.engines:
            engine.version = version

    def steer(self, *, paused: bool) -> None:
        """Stop or go on, everywhere."""
        for engine in self.engines:
            engine.steer(paused=paused)

    def _freest(self) -> SimulatedEngine:
        return min(self.engines, key=lambda engine: engine.num_in_flight)
