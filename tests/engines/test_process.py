"""The engine as a process: where it listens and how it ends."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from miles.clock import WallClock
from miles.engines.client import EngineClient
from miles.engines.fleet import EngineFleet
from miles.engines.wire import GenerateRequest, SamplingParams
from miles.errors import EngineError
from miles.loops.supervisor import Limits, Supervisor
from miles.weights.check import WeightCheck
from miles.weights.publish import Publisher
from miles.weights.transport import OneEngine

from .engine_fixtures import Http, ModelFolders, load_reference
from .ways import Policy, publishing, transport_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[Process]:
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "miles.engines.embedded", *arguments, stdout=PIPE, stderr=PIPE
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def address_of(started: Process) -> str:
    """From the log line that says where it listens."""
    assert started.stderr is not None
    async for line in started.stderr:
        if b"listening at" in line:
            return line.split()[-1].decode()
    raise AssertionError("it never listened")


async def test_a_process_serves_and_ends_on_a_signal(model_folder: Path) -> None:
    async with process("--model-path", str(model_folder), "--num-slots", "4", "--weight-version", "2") as started:
        client = EngineClient(await address_of(started))
        assert await client.weight_version() == 2
        long = GenerateRequest("long", (5,), SamplingParams(500, ignore_eos=True))
        task = asyncio.create_task(client.generate([long]))
        await asyncio.wait([task], timeout=0.05)
        started.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(started.wait(), 10) == 0
        with pytest.raises(EngineError):
            await task
        await client.close()


@pytest.mark.parametrize("way", ["tensor", "broadcast"])
async def test_weights_reach_another_process(qwen3: ModelFolders, tmp_path: Path, way: str) -> None:
    policy = Policy(qwen3.second)
    async with process("--model-path", str(qwen3.first), "--num-slots", "4") as started, aiohttp.ClientSession() as session:
        address = await address_of(started)
        async with publishing(way, Http(address, session), policy, tmp_path) as publisher, EngineClient(address) as client:
            await publisher.publish(1)
            await WeightCheck(policy.weights).compare(1, OneEngine(0, client))
            assert await client.weight_version() == 1
            policy.become(load_reference(qwen3.first))
            await publisher.publish(2)
            await WeightCheck(policy.weights).compare(2, OneEngine(0, client))


async def test_a_killed_engine_is_an_error_in_seconds(model_folder: Path) -> None:
    async with process("--model-path", str(model_folder)) as started:
        client = EngineClient(await address_of(started))
        await client.pause("in_place")
        task = asyncio.create_task(client.generate([GenerateRequest("r", (5,), SamplingParams(9))]))
        await asyncio.wait([task], timeout=0.05)
        started.kill()
        with pytest.raises(EngineError, match="cannot be reached"):
            await asyncio.wait_for(task, 5)
        await client.close()


class Halting(Policy):
    """Halts an engine's process when the first bucket is under way to it."""

    def __init__(self, folder: Path, engine: Process) -> None:
        super().__init__(folder)
        self.engine = engine

    async def _ask(self, doing: str, step: str, *arguments: Any, first_only: bool = False, **options: Any) -> list[Any]:
        if step in ("payloads", "broadcast") and self.engine.returncode is None:
            self.engine.send_signal(signal.SIGSTOP)
        return await super()._ask(doing, step, *arguments, first_only=first_only, **options)


@dataclass
class Kept:
    """A process as its supervisor sees it; it is not started again."""

    process: Process
    client: EngineClient
    name: str = "the engine"

    async def ended(self) -> str:
        return f"it ended with {await self.process.wait()}"

    def kill(self) -> None:
        self.process.kill()

    async def join(self, fleet: EngineFleet) -> None:
        raise AssertionError

    async def start(self, number: int) -> "Kept":
        raise AssertionError


@pytest.mark.parametrize("way", ["tensor", "broadcast"])
async def test_one_that_hangs_while_weights_travel_is_ended_before_the_update_is_given_up(
    model_folder: Path, way: str, tmp_path: Path
) -> None:
    async with process("--model-path", str(model_folder), "--num-slots", "4") as started:
        client = EngineClient(await address_of(started))
        fleet, kept, policy = EngineFleet([client], recovers=True), Kept(started, client), Halting(model_folder, started)
        publisher = Publisher(transport_of(way, policy, tmp_path), fleet, "retract", 60.0, WallClock())
        keeping = asyncio.create_task(Supervisor(fleet, kept, Limits(0, 0.1, 1.0), print).keep(0, kept))
        async with asyncio.timeout(15):
            await publisher.publish(1)
        with pytest.raises(EngineError, match="it gave no sign of life for 1 s"):
            await keeping
        assert fleet.clients == ()
