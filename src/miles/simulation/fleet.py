"""Simulated engines together, behind the line that stands before real ones."""

import asyncio
from collections.abc import Callable, Sequence

from miles.clock import Clock
from miles.engines.line import Line, with_queue
from miles.simulation.cores import Cores
from miles.simulation.engines import SimulatedEngine, Spans
from miles.simulation.workload import Workload


class SimulatedFleet:
    """Several engines behind one line, as in ``EngineFleet``: a group goes where the fewest samples are in flight."""

    def __init__(self, clock: Clock, cores: Cores, workload: Workload, num_engines: int) -> None:
        self.engines = [SimulatedEngine(clock, cores, workload) for _ in range(num_engines)]
        self._most = with_queue(workload.slots)
        self._line: Line[SimulatedEngine] = Line(self._pick, self._tell_room)
        self._room_listeners: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def has_room(self) -> bool:
        """Whether nobody waits for an engine to have room."""
        return not len(self._line)

    def on_room(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever ``has_room`` may have become true."""
        self._room_listeners.append(listener)

    def start(self) -> None:
        """Let the engines run on the current event loop."""
        self._tasks = [asyncio.create_task(engine.run()) for engine in self.engines]

    async def close(self) -> None:
        """End them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def generate(self, lengths: Sequence[int], *, together: bool) -> list[Spans]:
        """The spans of every answer to one prompt; ``together`` sends all to one engine."""
        prompt = object()
        if together:
            return await self._at_an_engine(lengths, prompt)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._at_an_engine([length], prompt)) for length in lengths]
        return [spans for task in running for spans in task.result()]

    async def interrupt(self) -> None:
        """End every sample with the tokens that it has, everywhere."""
        for engine in self.engines:
            engine.interrupt()

    async def pause(self) -> None:
        """Return when all stand."""
        await asyncio.gather(*(engine.pause() for engine in self.engines))

    async def take_weights(self, seconds: float) -> None:
        """Every engine is busy with that for so long."""
        await asyncio.gather(*(engine.take_weights(seconds) for engine in self.engines))

    def go_on(self, version: int, *, retracts: bool) -> None:
        """Every engine samples under ``version`` from its next step on; see ``SimulatedEngine.go_on``."""
        for engine in self.engines:
            engine.go_on(version, retracts=retracts)

    async def _at_an_engine(self, lengths: Sequence[int], prompt: object) -> list[Spans]:
        engine = await self._line.enter(len(lengths))
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(engine.generate(length, prompt)) for length in lengths]
            return [task.result() for task in running]
        finally:
            self._line.leave(engine, len(lengths))

    def _pick(self, size: int) -> SimulatedEngine | None:
        engine = min(self.engines, key=lambda engine: engine.num_in_flight)
        return engine if not engine.num_in_flight or engine.num_in_flight + size <= self._most else None

    def _tell_room(self) -> None:
        for listener in self._room_listeners:
            listener()
