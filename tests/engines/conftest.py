"""Fixtures of the engine tests. ``MILES_CONFORMANCE_ADDRESS`` adds a running server of any make to the conformance suite."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
import torch

from .engine_fixtures import KINDS, PRESET_MODEL, Http, ModelFolders, make_folders, options_for, running

EXTERNAL = os.environ.get("MILES_CONFORMANCE_ADDRESS")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelFolders]:
    root = tmp_path_factory.mktemp("models")
    made = {kind: make_folders(kind, root) for kind in KINDS}
    return made | {"preset": ModelFolders(PRESET_MODEL, PRESET_MODEL)}


@pytest.fixture(scope="session", params=["llama", "qwen2", "qwen3", "preset", *(["external"] if EXTERNAL else [])])
def address(request: pytest.FixtureRequest, folders: dict[str, ModelFolders]) -> Iterator[str]:
    """Servers that the conformance suite runs against."""
    if request.param == "external":
        yield str(EXTERNAL)
        return
    with running(options_for(folders[request.param].first)) as served:
        yield served


@pytest.fixture
async def http(address: str) -> AsyncIterator[Http]:
    async with aiohttp.ClientSession() as session:
        client = Http(address, session, afterwards_seconds=5.0 if address == EXTERNAL else 0.0)
        yield client
        await client.post("/continue_generation", {})


@pytest.fixture(scope="session")
def qwen3(folders: dict[str, ModelFolders]) -> ModelFolders:
    return folders["qwen3"]


@pytest.fixture
async def fresh(qwen3: ModelFolders) -> AsyncIterator[Http]:
    """A server that a test may change the weights of."""
    with running(options_for(qwen3.first)) as served:
        async with aiohttp.ClientSession() as session:
            yield Http(served, session)


@pytest.fixture
def model_folder(qwen3: ModelFolders) -> Path:
    return qwen3.first
