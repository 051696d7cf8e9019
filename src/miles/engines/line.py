"""The line in front of the engines: requests wait in order until one has room for them.

``pick`` says who has room. Nothing polls: whoever leaves, joins or is lost lets the next ones in.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from miles.errors import EngineError


class Place(Protocol):
    """Where requests are sent: one engine, or a router before several; it counts samples, not HTTP requests."""

    num_in_flight: int


P = TypeVar("P", bound=Place)
QUEUED_SHARE = 2  # an engine that decodes n samples holds as many again, so that none of its slots waits for the network


def with_queue(num_slots: int) -> int:
    """Samples that an engine of so many slots holds at once."""
    return QUEUED_SHARE * num_slots


@dataclass(eq=False, slots=True)
class Waiting(Generic[P]):
    """Requests for ``size`` samples and the place they will be told."""

    size: int
    turn: "asyncio.Future[P]"


class Line(Generic[P]):
    """First come, first served. ``emptied`` is called whenever nobody waits any more."""

    def __init__(self, pick: Callable[[int], P | None], emptied: Callable[[], None]) -> None:
        self._pick, self._emptied = pick, emptied
        self._waiting: deque[Waiting[P]] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def enter(self, size: int) -> P:
        """The place with room for ``size`` samples, counted as in flight there; as soon as it is one's turn."""
        if not self._waiting and (place := self._pick(size)) is not None:
            place.num_in_flight += size
            return place
        mine: Waiting[P] = Waiting(size, asyncio.get_running_loop().create_future())
        self._waiting.append(mine)
        try:
            return await mine.turn
        except asyncio.CancelledError:
            if mine.turn.done() and not mine.turn.cancelled() and mine.turn.exception() is None:
                self.leave(mine.turn.result(), size)  # it was let in and left in the same moment
            else:
                self.moved()  # it stood in the way of others, or was the last one
            raise

    def leave(self, place: P, size: int) -> None:
        """The samples are done; the next ones may come."""
        place.num_in_flight -= size
        self.moved()

    def moved(self) -> None:
        """Let those in whose turn it is."""
        had_waiting = bool(self._waiting)
        while self._waiting:
            first = self._waiting[0]
            if not first.turn.done():
                if (place := self._pick(first.size)) is None:
                    break
                place.num_in_flight += first.size
                first.turn.set_result(place)
            self._waiting.popleft()
        if had_waiting and not self._waiting:
            self._emptied()

    def fail(self, error: EngineError) -> None:
        """Nobody will be let in any more."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.turn.done():
                waiting.turn.set_exception(error)
