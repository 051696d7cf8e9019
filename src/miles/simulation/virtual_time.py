"""An event loop whose time jumps to the next timer: hours of schedule in milliseconds, and a deadlock is an error."""

import asyncio
from asyncio import base_events
from collections.abc import Coroutine
from typing import Any

from miles.errors import MilesError


class DeadlockError(MilesError):
    """Nothing is ready and nothing will be."""


class VirtualLoop(base_events.BaseEventLoop):
    """No file descriptors, no waiting."""

    HORIZON_SECONDS = 1e9

    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._clock_resolution = 1e-6  # above the spacing of floats at the horizon
        self._selector = self

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Stand in for the selector: instead of waiting, time moves on."""
        if timeout is None or (timeout > 0 and self._scheduled[0].when() > self.HORIZON_SECONDS):
            raise DeadlockError(f"nothing happens any more after {self._now:.3f} s")
        if timeout > 0:
            self._now = self._scheduled[0].when()
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """There is no other thread to wake from."""


class VirtualClock:
    """The clock of the running virtual loop."""

    def now(self) -> float:
        """Virtual seconds; 0 before the loop runs."""
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return 0.0

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)


def run_virtual(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
