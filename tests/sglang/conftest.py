"""One real sglang server on this CPU for all tests of the lane that need no other."""

import importlib.util
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from miles.engines.sglang_server.arguments import SglangOptions

from ..engines.engine_fixtures import CONTEXT_LEN, Http, ModelFolders, make_folders, sglang_running

START_SECONDS = 150
REASON = "sglang is not installed: pip install --no-deps -r requirements/sglang-cpu.txt"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("sglang") is None:
        for item in items:
            if item.get_closest_marker("sglang"):
                item.add_marker(pytest.mark.skip(REASON))


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> ModelFolders:
    return make_folders("qwen3", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def address(qwen3: ModelFolders, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = SglangOptions(str(qwen3.first), "cpu", context_len=CONTEXT_LEN, max_running_requests=16)
    with sglang_running(options, tmp_path_factory.mktemp("logs") / "sglang.log", START_SECONDS) as served:
        yield served


@pytest.fixture
async def http(address: str) -> AsyncIterator[Http]:
    async with aiohttp.ClientSession() as session:
        # its scheduler lets go of a finished request when it makes up the next batch, after it has taken what came meanwhile
        client = Http(address, session, afterwards_seconds=5.0)
        yield client
        await client.post("/continue_generation", {})


@pytest.fixture
async def fresh(http: Http, qwen3: ModelFolders) -> AsyncIterator[Http]:
    """The server with the first weights as version 0, before and after."""
    first = {"model_path": str(qwen3.first), "weight_version": "0"}
    await http.ok("/update_weights_from_disk", first)
    yield http
    await http.post("/abort_request", {"abort_all": True})
    await http.post("/continue_generation", {})
    await http.ok("/update_weights_from_disk", first)


@pytest.fixture
def model_folder(qwen3: ModelFolders) -> Path:
    return qwen3.first
