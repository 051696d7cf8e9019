"""No progress for a while: say who waits for whom. Rollout functions watch themselves; this watches the loop's other verbs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from miles.clock import Clock


def say_nothing(_line: str) -> None:
    """For runs that nobody watches."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a wait may take before it is spoken of.

    seconds: None is for ever.
    """

    clock: Clock
    seconds: float | None = None
    say: Callable[[str], None] = say_nothing

    @asynccontextmanager
    async def while_waiting(self, what: str) -> AsyncIterator[None]:
        """Say every ``seconds`` that the loop still waits for ``what``."""
        if self.seconds is None:
            yield
            return
        task = asyncio.create_task(self._complain(what, self.seconds), name=f"patience with {what}")
        try:
            yield
        finally:
            task.cancel()

    async def _complain(self, what: str, seconds: float) -> None:
        began = self.clock.now()
        while True:
            await self.clock.sleep(seconds)
            self.say(f"no progress for {self.clock.now() - began:.0f} s: the loop waits for {what}")
