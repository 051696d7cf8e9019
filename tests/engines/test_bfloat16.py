"""An embedded engine in bfloat16: the log-probs of transformers in bfloat16, and float32 weights are taken."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
import torch
from transformers import AutoModelForCausalLM

from .engine_fixtures import Http, ModelFolders, options_for, reference_logprobs, running, sampled

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]
PROMPT = [5, 17, 33, 8]
SAMPLING = {"max_new_tokens": 12, "ignore_eos": True, "temperature": 0.7}


@pytest.fixture(scope="module")
def served(folders: dict[str, ModelFolders]) -> Iterator[str]:
    with running(options_for(folders["qwen3"].first, seed=3, dtype="bfloat16")) as address:
        yield address


@pytest.fixture
async def http(served: str) -> AsyncIterator[Http]:
    async with aiohttp.ClientSession() as session:
        yield Http(served, session)


def plain_scores(folder: Path, answer: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Log-probs of the answer by transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    return torch.tensor(reference_logprobs(model, PROMPT, answer, SAMPLING["temperature"]))


async def test_log_probs_are_those_of_bfloat16_also_after_an_update(http: Http, folders: dict[str, ModelFolders]) -> None:
    for folder in (folders["qwen3"].first, folders["qwen3"].second):
        body = {"model_path": str(folder), "weight_version": "1"}
        assert (await http.ok("/update_weights_from_disk", body))["success"]
        answer, logprobs = sampled(await http.generate(PROMPT, **SAMPLING))
        scores = torch.tensor(logprobs)
        torch.testing.assert_close(scores, plain_scores(folder, answer, torch.bfloat16), rtol=0, atol=0.08)
        distance = (scores - plain_scores(folder, answer, torch.float32)).abs().max()
        assert 1e-4 < distance < 0.2
