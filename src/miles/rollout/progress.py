"""No progress: when nothing has moved for long, the user is told who waits for whom."""

from collections.abc import Callable

from miles.clock import Clock


class ProgressWatch:
    """Speaks after ``seconds`` without a ``moved()``, then after twice as long, and so on until something moves."""

    def __init__(self, clock: Clock, seconds: float, say: Callable[[str], None], describe: Callable[[], str]) -> None:
        self._clock, self._seconds, self._say, self._describe = clock, seconds, say, describe
        self._limit, self._moved_at = seconds, clock.now()

    def moved(self) -> None:
        """Something was started, finished, taken or published."""
        self._limit, self._moved_at = self._seconds, self._clock.now()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._clock.sleep(max(self._moved_at + self._limit - self._clock.now(), self._seconds / 100))
            quiet = self._clock.now() - self._moved_at
            if quiet >= self._limit:
                self._say(f"no progress for {quiet:.0f} s: {self._describe()}")
                self._limit *= 2
