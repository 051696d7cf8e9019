"""Time as a parameter, so that schedules can run on a virtual clock."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What loops, producer and buffer know of time, in seconds."""

    def now(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        ...


class WallClock:
    """Real time."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running event loop."""
        await asyncio.sleep(seconds)
