"""Keeps engines and router of a run serving: one that dies or hangs is taken out, started again, and joins again.

serving ──ended, broke off, or silent too long──► out ──start──► current weights, router ──► serving
                                                   └─ restarts used up, or it does not start: the run ends with its words
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from miles.engines.fleet import EngineFleet
from miles.errors import EngineError

CAUSE_SECONDS = 3.0  # a broken connection shows before the death behind it


@dataclass(frozen=True, slots=True)
class Limits:
    """When an engine is given up.

    max_restarts: of each engine.
    interval_seconds: between two signs of life asked of an engine.
    timeout_seconds: an engine that gives none for so long hangs.
    """

    max_restarts: int
    interval_seconds: float
    timeout_seconds: float


class Answering(Protocol):
    """Speaks to a server."""

    async def alive(self, timeout_seconds: float, *, is_updating: bool = False) -> bool:
        """Whether it gives a sign of life in time, also while its weights change."""
        ...


class Process(Protocol):
    """The process of an engine or of the router."""

    @property
    def name(self) -> str:
        """What errors call it: ``engine 0``."""
        ...

    @property
    def client(self) -> Answering:
        """Speaks to it."""
        ...

    async def join(self, fleet: EngineFleet) -> None:
        """Take its place in the fleet.

        Raises:
            EngineError: it does not take the current weights, or not its engines.
        """
        ...

    async def ended(self) -> str:
        """Wait until it ends; why."""
        ...

    def kill(self) -> None:
        """End it now."""
        ...


class Starter(Protocol):
    """Starts engines."""

    async def start(self, number: int) -> Process:
        """Start one and wait until it serves."""
        ...


class Supervisor:
    """Watches over the engines of ``fleet``; ``say`` tells the user what happens."""

    def __init__(self, fleet: EngineFleet, starter: Starter, limits: Limits, say: Callable[[str], None]) -> None:
        self._fleet, self._starter, self._limits, self._say = fleet, starter, limits, say

    async def keep(self, number: int, engine: Process) -> None:
        """Keep engine ``number`` serving for as long as the run lasts.

        Raises:
            EngineError: it was lost once too often, or did not start again; with its last words.
        """
        for restart in range(1, self._limits.max_restarts + 1):
            reason = await self._until_lost(number, engine)
            self._say(f"{reason.splitlines()[0]} — starting it again ({restart} of {self._limits.max_restarts})")
            engine = await self._starter.start(number)
            await engine.join(self._fleet)
            self._say(f"{engine.name} serves again")
        reason = await self._until_lost(number, engine)
        raise EngineError(f"{reason}\nIt is not started again: --engine-max-restarts is {self._limits.max_restarts}.")

    async def _until_lost(self, number: int, engine: Process) -> str:
        """Wait for the end of an engine, whichever way it shows, and take it out; why it was lost."""
        ended = asyncio.create_task(engine.ended())
        signs = [asyncio.create_task(self._fleet.lost(number)), asyncio.create_task(self._silent(engine.client))]
        try:
            done, _ = await asyncio.wait([ended, *signs], return_when=asyncio.FIRST_COMPLETED)
            if ended not in done:
                await asyncio.wait([ended], timeout=CAUSE_SECONDS)
            reason = ended.result() if ended.done() else f"{engine.name} is lost: {next(iter(done)).result()}"
        finally:
            await end([ended, *signs])
        await self._fleet.take_out(number, reason)
        engine.kill()
        return reason

    async def _silent(self, client: Answering) -> str:
        """Wait until the engine gives no sign of life; while its weights change it need only listen."""
        steering, seconds = self._fleet.steering, self._limits.timeout_seconds
        while True:
            await asyncio.sleep(self._limits.interval_seconds)
            if not steering.locked() and await client.alive(seconds):
                continue
            if not steering.locked() or not await client.alive(seconds, is_updating=True):
                return f"it gave no sign of life for {seconds:g} s"


async def end(tasks: "list[asyncio.Task[Any]]") -> None:
    """Cancel tasks and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
