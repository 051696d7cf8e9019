"""LoRA adapters sent alone to a real sglang on a GPU.

pytest -m gpu tests/gpu/test_adapters.py
"""

import importlib.util
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
import torch

from miles.config.adapter_checks import SGLANG_LAYERS
from miles.engines.sglang_server.arguments import SglangOptions

from ..engines.adapter_suite import *  # noqa: F403 - the tests
from ..engines.engine_fixtures import CONTEXT_LEN, Http, ModelFolders, make_folders, sglang_running

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
START_SECONDS = 200


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> ModelFolders:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU, and there is none")
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("needs sglang, which is not installed")
    return make_folders("qwen3", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def address(qwen3: ModelFolders, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = SglangOptions(
        str(qwen3.first), "cuda", context_len=CONTEXT_LEN, max_running_requests=16, adapter_rank=3,
        adapter_targets=SGLANG_LAYERS, extra=(("attention-backend", "torch_native"),),
    )  # fmt: skip
    with sglang_running(options, tmp_path_factory.mktemp("logs") / "sglang.log", START_SECONDS) as served:
        yield served


@pytest.fixture
async def adapting(address: str) -> AsyncIterator[Http]:
    async with aiohttp.ClientSession() as session:
        yield Http(address, session)
