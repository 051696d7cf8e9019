"""Notice at once when a process of the run dies, and say which one and why."""

import asyncio
from collections.abc import Sequence
from typing import Any

from miles.errors import EngineError

CAUSE_SECONDS = 5.0


async def until_done(work: "asyncio.Task[None]", deaths: Sequence["asyncio.Task[Any]"]) -> None:
    """Wait for the work; end it as soon as a process of the run has died.

    A dead engine shows up as a broken connection first, so a failure of the work waits a moment for the death behind it.

    Raises:
        MilesError: what the first death says, or what the work itself failed with.
    """
    await asyncio.wait([work, *deaths], return_when=asyncio.FIRST_COMPLETED)
    if deaths and comes_from_an_engine(error_of(work)):
        await asyncio.wait(deaths, timeout=CAUSE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    cause = next((error for task in deaths if task.done() and (error := error_of(task))), None)
    if cause is not None and (work.cancelled() or error_of(work) is not None):
        raise cause
    await work


def comes_from_an_engine(error: BaseException | None) -> bool:
    """Whether an engine's failure stands anywhere in the chain of causes."""
    while error is not None:
        if isinstance(error, EngineError):
            return True
        error = error.__cause__
    return False


def error_of(task: "asyncio.Task[Any]") -> BaseException | None:
    """The exception a finished task ended with, None for success or cancellation."""
    return None if not task.done() or task.cancelled() else task.exception()
