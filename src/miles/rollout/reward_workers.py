"""Worker processes for plain reward functions: started when first needed, killed and replaced when a call hangs.

A process is the only place where Python code that loops or blocks can be stopped. The time limit counts from when a worker
takes the call; waiting for a free worker and starting one are not the function's fault.
"""

import asyncio
import os
import pickle
import sys
from typing import Any, Final, TypeVar

from miles.errors import RewardError
from miles.rollout.reward_worker import HEADER, pack
from miles.types import Prompt, Sample

T = TypeVar("T")
START_TIMEOUT_SECONDS: Final = 120.0


class RewardWorkers:
    """Calls ``path`` in one of ``num_workers`` processes."""

    def __init__(self, path: str, num_workers: int, timeout_seconds: float) -> None:
        self._path, self._timeout_seconds = path, timeout_seconds
        self._idle: list[asyncio.subprocess.Process] = []
        self._free = asyncio.Semaphore(num_workers)

    async def __call__(self, what: Sample | list[Sample], prompt: Prompt) -> Any:
        """What the function returned.

        Raises:
            RewardError: it raised, took too long, or ended its process.
        """
        async with self._free:
            worker = self._idle.pop() if self._idle else await self._start()
            ok, result = await self._call(worker, pack((what, prompt)))
        if not ok:
            raise RewardError(str(result))
        return result

    async def close(self) -> None:
        """Kill the idle processes; one in a call is killed when the call is cancelled."""
        idle, self._idle = self._idle, []
        for worker in idle:
            await kill(worker)

    async def _call(self, worker: asyncio.subprocess.Process, frame: bytes) -> tuple[bool, Any]:
        late = f"the reward took longer than {self._timeout_seconds:g} s and was killed (--reward-timeout-seconds)"
        gone = f"the process of the reward {self._path} ended in the middle of a call"
        reply = await self._receive_in_time(worker, frame, self._timeout_seconds, late, gone)
        self._idle.append(worker)
        return reply

    async def _start(self) -> asyncio.subprocess.Process:
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "miles.rollout.reward_worker",
            self._path,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is for the driver
        )
        late = f"the process of the reward {self._path} did not start within {START_TIMEOUT_SECONDS:g} s"
        gone = f"the process of the reward {self._path} ended while it loaded the function; its output says why"
        await self._receive_in_time(worker, b"", START_TIMEOUT_SECONDS, late, gone)
        return worker

    async def _receive_in_time(
        self, worker: asyncio.subprocess.Process, frame: bytes, seconds: float, late: str, gone: str
    ) -> tuple[bool, Any]:
        """Send a frame and receive the reply; whatever goes wrong, the process is gone afterwards."""
        received = False
        try:
            reply = await asyncio.wait_for(exchange(worker, frame), seconds)
            received = True
        except TimeoutError as error:
            raise RewardError(late) from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise RewardError(gone) from error
        finally:
            if not received:
                await kill(worker)
        return reply


async def exchange(worker: asyncio.subprocess.Process, frame: bytes) -> tuple[bool, Any]:
    """Send a frame, which may be empty, and receive one."""
    stdin, replies = given(worker.stdin), given(worker.stdout)
    stdin.write(frame)
    await stdin.drain()
    (length,) = HEADER.unpack(await replies.readexactly(HEADER.size))
    frame = await replies.readexactly(length)
    try:
        ok, result = pickle.loads(frame)
    except Exception as error:  # unpickling runs the code of whatever the reward returned
        raise RewardError(f"what the reward returned cannot be read here: {type(error).__name__}: {error}") from error
    return bool(ok), result


async def kill(worker: asyncio.subprocess.Process) -> None:
    """End a process and wait until it is gone."""
    if worker.returncode is None:
        worker.kill()
    await worker.wait()


def given(pipe: T | None) -> T:
    """A pipe that was asked for at the start of the process.

    Raises:
        RewardError: there is none.
    """
    if pipe is None:
        raise RewardError("the process of the reward has no pipe")
    return pipe
