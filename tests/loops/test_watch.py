"""A death is noticed at once, and told instead of the broken connection it causes."""

import asyncio

import pytest

from miles.errors import EngineError, MilesError, RolloutError
from miles.loops.watch import comes_from_an_engine, until_done

pytestmark = pytest.mark.unit


async def forever() -> None:
    await asyncio.Event().wait()


async def dies(after: asyncio.Event) -> None:
    await after.wait()
    raise EngineError("engine 0 died: killed by signal 9")


async def end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_work_that_ends_well_is_not_disturbed() -> None:
    alive = asyncio.create_task(forever())
    work = asyncio.create_task(asyncio.sleep(0))
    await until_done(work, [alive])
    assert work.done() and not work.cancelled()
    assert not alive.done(), "the watch goes on until the run ends it"
    await end(alive)


async def test_a_death_ends_work_that_waits_for_ever() -> None:
    now = asyncio.Event()
    work, death = asyncio.create_task(forever()), asyncio.create_task(dies(now))
    now.set()
    with pytest.raises(EngineError, match="engine 0 died: killed by signal 9"):
        await asyncio.wait_for(until_done(work, [death]), 5)
    assert work.cancelled()


async def test_the_death_is_told_and_not_the_broken_connection() -> None:
    now = asyncio.Event()

    async def connection_breaks() -> None:
        now.set()
        try:
            raise EngineError("connection reset")
        except EngineError as error:
            raise RolloutError("rollout 3 failed") from error

    with pytest.raises(EngineError, match="engine 0 died"):
        await asyncio.wait_for(until_done(asyncio.create_task(connection_breaks()), [asyncio.create_task(dies(now))]), 5)


async def test_a_failure_of_its_own_is_told_as_it_is() -> None:
    async def breaks() -> None:
        raise MilesError("disk full")

    alive = asyncio.create_task(forever())
    with pytest.raises(MilesError, match="disk full"):
        await asyncio.wait_for(until_done(asyncio.create_task(breaks()), [alive]), 2)
    await end(alive)


def test_causes_are_followed() -> None:
    inner, outer = EngineError("no"), RolloutError("no")
    outer.__cause__ = inner
    assert comes_from_an_engine(outer)
    assert not comes_from_an_engine(RolloutError("no"))
    assert not comes_from_an_engine(None)
