"""Cores on the virtual clock, shared by whoever is at work: n at once on c cores each progress at c / n of their speed.

    attained(t)  CPU seconds that one who was always at work has got by t; grows by min(1, c / n) a second
    a task       begins at attained = a and needs s seconds: it ends when attained = a + s

This is processor sharing, what the system's scheduler comes to over times longer than its slices.
"""

import asyncio
import math

CLOCK_SLACK = 2e-6  # seconds; a virtual loop may call that much early, as its clock is no finer


class Task:
    """Work under way. ended: resolves when it has got its seconds."""

    def __init__(self, began: float, seconds: float) -> None:
        self.began, self.seconds = began, seconds
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def goal(self) -> float:
        """When it ends, in attained seconds."""
        return self.began + self.seconds


class Cores:
    """``number`` of them; None: as many as there are tasks."""

    def __init__(self, number: int | None = None) -> None:
        self._number = math.inf if number is None else number
        self._attained = self._since = 0.0
        self._tasks: list[Task] = []
        self._timer: asyncio.TimerHandle | None = None

    async def work(self, seconds: float) -> None:
        """Return once so many CPU seconds were got."""
        if seconds > 0:
            await self.until_ended(self.begin(seconds))

    def begin(self, seconds: float) -> Task:
        """Be at work from now on."""
        self._advance()
        task = Task(self._attained, seconds)
        self._tasks.append(task)
        self._plan()
        return task

    async def until_ended(self, task: Task) -> None:
        """Wait for it; whoever is cancelled leaves the core."""
        try:
            await task.ended
        finally:
            if task in self._tasks:
                self._advance()
                self._tasks.remove(task)
                self._plan()

    def got(self, task: Task) -> float:
        """CPU seconds of a task that is under way."""
        self._advance()
        return self._attained - task.began

    def shorten(self, task: Task, seconds: float) -> None:
        """It needs only so many seconds in all."""
        task.seconds = min(task.seconds, seconds)
        self._advance()
        self._plan()

    @property
    def _speed(self) -> float:
        return min(1.0, self._number / len(self._tasks)) if self._tasks else 0.0

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        self._attained += (now - self._since) * self._speed
        self._since = now

    def _plan(self) -> None:
        """Wake when the next task ends, if those that are at work stay the same."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._tasks:
            rest = min(task.goal for task in self._tasks) - self._attained
            self._timer = asyncio.get_running_loop().call_later(max(0.0, rest) / self._speed, self._end_tasks)

    def _end_tasks(self) -> None:
        self._advance()
        ended = [task for task in self._tasks if task.goal <= self._attained + CLOCK_SLACK]
        self._tasks = [task for task in self._tasks if task not in ended]
        for task in ended:
            if not task.ended.done():
                task.ended.set_result(None)
        self._plan()


class Process:
    """One that does one thing at a time, in the order in which it was asked. busy_seconds: how long it was at work."""

    def __init__(self, cores: Cores) -> None:
        self.busy_seconds = 0.0
        self._cores, self._turn = cores, asyncio.Lock()

    async def work(self, seconds: float) -> None:
        """Return once it has done this, too."""
        if seconds <= 0:
            return
        async with self._turn:
            began = asyncio.get_running_loop().time()
            await self._cores.work(seconds)
            self.busy_seconds += asyncio.get_running_loop().time() - began
