"""The engine as a process: where it listens and how it ends."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from miles.engines.client import EngineClient
from miles.engines.wire import GenerateRequest, SamplingParams
from miles.errors import EngineError
from miles.weights.check import WeightCheck
from miles.weights.transport import OneEngine

from .engine_fixtures import Http, ModelFolders, load_reference
from .ways import Policy, publishing

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
