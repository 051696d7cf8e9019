"""The first signal ends the step, the second ends the run now."""

import asyncio
import os
import signal

import pytest

from miles.loops.parts import StopFlag
from miles.loops.signals import Interrupts, handling

pytestmark = pytest.mark.unit


async def interrupted(*numbers: signal.Signals, stepping: bool) -> tuple[Interrupts, StopFlag, asyncio.Task[bool], list[str]]:
    """Send real signals to this process while work is under way."""
    stop, said, heard = StopFlag(), list[str](), asyncio.Queue[str]()
    work: asyncio.Task[bool] = asyncio.create_task(asyncio.Event().wait())
    interrupts = Interrupts(stop, work, heard.put_nowait, lambda: stepping)
    with handling(interrupts):
        for number in numbers:
            os.kill(os.getpid(), number)
            said.append(await asyncio.wait_for(heard.get(), 5))
    await asyncio.sleep(0)
    return interrupts, stop, work, said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_the_first_asks_the_loop_to_stop(number: signal.Signals, code: int) -> None:
    interrupts, stop, work, said = await interrupted(number, stepping=True)
    assert (interrupts.exit_code, stop.requested, work.done()) == (code, True, False)
    assert "again to stop now" in said[0]
    work.cancel()


async def test_the_second_stops_now() -> None:
    interrupts, _, work, _ = await interrupted(signal.SIGINT, signal.SIGINT, stepping=True)
    assert interrupts.exit_code == 130
    assert work.cancelled()


async def test_before_the_loop_one_is_enough() -> None:
    _, _, work, said = await interrupted(signal.SIGINT, stepping=False)
    assert work.cancelled()
    assert said == ["stopping now"]
