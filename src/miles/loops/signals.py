"""Ctrl-C and SIGTERM: the first finishes the step and saves, the second stops now."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from miles.loops.parts import StopFlag

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Interrupts:
    """Counts signals for one run; ``exit_code`` is 0 until the first."""

    def __init__(
        self, stop: StopFlag, work: "asyncio.Task[Any]", say: Callable[[str], None], stepping: Callable[[], bool]
    ) -> None:
        self.exit_code = 0
        self._stop, self._work, self._say, self._stepping = stop, work, say, stepping

    def handle(self, number: signal.Signals) -> None:
        """The first signal asks the loop to end after its step; the next, or one before the loop runs, ends it now."""
        first, self.exit_code = not self._stop.requested, EXIT_CODES[number]
        self._stop.requested = True
        if first and self._stepping():
            self._say("stopping: the step ends and what is trained is saved; press Ctrl-C again to stop now")
            return
        self._say("stopping now")
        self._work.cancel()


@contextmanager
def handling(interrupts: Interrupts) -> Iterator[None]:
    """Route SIGINT and SIGTERM of this process to ``interrupts``."""
    loop = asyncio.get_running_loop()
    for number in EXIT_CODES:
        loop.add_signal_handler(number, interrupts.handle, number)
    try:
        yield
    finally:
        for number in EXIT_CODES:
            loop.remove_signal_handler(number)
