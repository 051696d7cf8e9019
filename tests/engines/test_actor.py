"""The engine in a Ray actor: it serves, says when it ends, and dies with its owner."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from miles.engines.actor import EngineActor, remote_engine_actor
from miles.engines.client import EngineClient
from miles.engines.wire import GenerateRequest, SamplingParams
from miles.errors import EngineError

ray = pytest.importorskip("ray")

REQUEST = GenerateRequest("r", (5, 6), SamplingParams(4, ignore_eos=True))


@pytest.mark.unit
async def test_the_plain_class_serves(model_folder: Path) -> None:
    actor = EngineActor(str(model_folder), num_slots=2)
    client = EngineClient(await actor.start())
    assert await client.weight_version() == 0
    waiting = asyncio.create_task(actor.wait())
    assert len((await client.generate([REQUEST]))[0].output_ids) == 4
    await actor.stop()
    assert await waiting == ""
    with pytest.raises(EngineError):
        await client.generate([REQUEST])
    await client.close()


@pytest.mark.unit
def test_importing_it_loads_neither_ray_nor_torch() -> None:
    modules = "miles.engines.actor, miles.engines.client, miles.engines.fleet"
    code = f"import sys, {modules}; print({{'ray', 'torch'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    if ray.is_initialized():  # one Ray for every test of a process
        yield
        return
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.e2e
@pytest.mark.timeout(120)
async def test_an_actor_serves_and_its_death_is_seen(cluster: None, model_folder: Path) -> None:
    actor = remote_engine_actor(num_cpus=1).remote(str(model_folder), num_slots=2, deterministic=True, seed=1)
    client = EngineClient(await actor.start.remote())
    assert len((await client.generate([REQUEST]))[0].output_ids) == 4
    death = actor.wait.remote()
    ray.kill(actor)
    with pytest.raises(ray.exceptions.RayActorError):
        await asyncio.wait_for(death, 20)
    with pytest.raises(EngineError, match="cannot be reached"):
        await client.generate([REQUEST])
    await client.close()


@pytest.mark.e2e
@pytest.mark.timeout(120)
async def test_a_model_that_cannot_be_served_fails_the_start(cluster: None, tmp_path: Path) -> None:
    actor = remote_engine_actor().remote(str(tmp_path))
    with pytest.raises(EngineError, match=r"holds no config\.json"):
        await actor.start.remote()
    ray.kill(actor)
