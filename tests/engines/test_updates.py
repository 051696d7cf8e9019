"""Weight updates in flight: every token has the log-prob of the weights it is said to come from."""

import asyncio
import shutil
from pathlib import Path

import aiohttp
import pytest
import torch
from safetensors.torch import load_file, save_file

from miles.engines.embedded.model import load_model
from miles.engines.embedded.request import Generation, Request, Sampling
from miles.engines.embedded.runner import TorchRunner
from miles.engines.embedded.scheduler import Scheduler
from miles.engines.embedded.weights import copy_weights

from .engine_fixtures import (
    Http,
    ModelFolders,
    load_reference,
    options_for,
    reference_logprobs,
    reference_row,
    running,
    sampled,
)
from .update_suite import *  # noqa: F403 - the tests that sglang runs too
from .update_suite import LENGTH, PROMPTS, spans_of, update

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]


@pytest.fixture
def way() -> str:
    """The transport of the suite here; ``test_load`` takes the others."""
    return "disk"


async def test_update_without_a_pause(fresh: Http, qwen3: ModelFolders) -> None:
    task = asyncio.create_task(fresh.generate([5, 6, 7], **LENGTH))
    await fresh.until_busy()
    await update(fresh, qwen3.second, "1")
    assert {version for version, _, _ in spans_of(await task)} <= {"0", "1"}
    after = await fresh.generate([5, 6, 7], max_new_tokens=4, ignore_eos=True)
    tokens, logprobs = sampled(after)
    assert spans_of(after) == [("1", 0, 4)]
    assert logprobs == pytest.approx(reference_logprobs(load_reference(qwen3.second), [5, 6, 7], tokens), abs=1e-4)
    assert (await fresh.get("/model_info"))[1]["weight_version"] == "1"


async def test_an_update_without_a_version_keeps_its_name(fresh: Http, qwen3: ModelFolders) -> None:
    await fresh.ok("/update_weights_from_disk", {"model_path": str(qwen3.second)})
    assert (await fresh.get("/model_info"))[1]["weight_version"] == "0"


async def test_flush_with_frozen_requests_is_said_to_have_failed(fresh: Http, qwen3: ModelFolders) -> None:
    task = asyncio.create_task(fresh.generate([5], **LENGTH))
    await fresh.until_busy()
    await fresh.post("/pause_generation", {"mode": "in_place"})
    body = {"model_path": str(qwen3.second), "weight_version": "1", "flush_cache": True}
    words = await fresh.message(body, "/update_weights_from_disk")
    assert "not flushed because 1 requests are running" in words
    assert (await fresh.get("/model_info"))[1]["weight_version"] == "1"
    await fresh.post("/continue_generation", {})
    await task


async def test_abort_all_requests_before_an_update(fresh: Http, qwen3: ModelFolders) -> None:
    task = asyncio.create_task(fresh.generate([5], **LENGTH))
    await fresh.until_busy()
    await update(fresh, qwen3.second, "1", abort_all_requests=True)
    answer = await task
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert {version for version, _, _ in spans_of(answer)} == {"0"}


@pytest.mark.parametrize("damage", ["missing", "unknown", "shape", "broken", "nowhere"])
async def test_weights_that_do_not_fit_change_nothing(fresh: Http, qwen3: ModelFolders, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "new"
    shutil.copytree(qwen3.second, folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.mlp.up_proj.weight"
    if damage == "missing":
        del tensors[name]
    elif damage == "unknown":
        tensors["model.layers.9.x"] = torch.zeros(1)
        name = "model.layers.9.x"
    elif damage == "shape":
        tensors[name] = torch.zeros(3, 3)
    save_file(tensors, file)
    if damage == "broken":
        file.write_bytes(b"not safetensors")
        name = "cannot be read"
    if damage == "nowhere":
        file.unlink()
        name = "no *.safetensors"
    words = await fresh.message({"model_path": str(folder), "weight_version": "1"}, "/update_weights_from_disk")
    assert name in words
    assert "stay as they were" in words
    tokens, logprobs = sampled(await fresh.generate([5, 6], max_new_tokens=3, ignore_eos=True))
    assert logprobs == pytest.approx(reference_logprobs(load_reference(qwen3.first), [5, 6], tokens), abs=1e-4)
    assert (await fresh.get("/model_info"))[1]["weight_version"] == "0"


async def test_weights_without_numbers_fail_requests_and_good_ones_heal(fresh: Http, qwen3: ModelFolders, tmp_path: Path) -> None:
    tensors = {name: torch.full_like(t, torch.nan) for name, t in load_file(qwen3.first / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors")
    body = {"input_ids": [[5], [6, 7]], "sampling_params": LENGTH}
    task = asyncio.create_task(fresh.post("/generate", body))
    await fresh.until_busy()
    await update(fresh, tmp_path, "bad", flush_cache=False)
    status, answer = await task
    assert status == 500
    assert "no finite log-probabilities under weight version bad" in answer["error"]["message"]
    assert (await fresh.post("/generate", body | {"input_ids": [[5]] * 8}))[0] == 500
    await update(fresh, qwen3.first, "2")
    model = load_reference(qwen3.first)
    for answer in await fresh.generate([[5, 6]] * 8, max_new_tokens=3, ignore_eos=True):
        tokens, logprobs = sampled(answer)
        assert logprobs == pytest.approx(reference_logprobs(model, [5, 6], tokens), abs=1e-4)


@pytest.mark.parametrize("deterministic", [False, True])
def test_no_slot_keeps_a_nan(model_folder: Path, deterministic: bool) -> None:
    model = load_model(str(model_folder))
    scheduler = Scheduler(TorchRunner(model, 8, 64, deterministic=deterministic), 8, "0", frozenset(), model.tokenizer.decode)
    sampling = Sampling(max_new_tokens=40, temperature=1.0, top_p=1.0, top_k=0, seed=1)
    ask = [Generation(Request(rid=str(i), input_ids=(5, 6 + i), sampling=sampling)) for i in range(11)]
    scheduler.add(ask[:3])
    for _ in range(20):  # beyond what a prefill writes
        scheduler.step()
    good = {name: tensor.clone() for name, tensor in model.network.named_parameters()}
    copy_weights(model.network, {name: torch.full_like(tensor, torch.nan) for name, tensor in good.items()})
    assert all("no finite" in str(generation.error) for generation in scheduler.step())
    assert not scheduler.rows
    copy_weights(model.network, good)
    scheduler.add(ask[3:])  # all slots, also those that only padded a tile
    while scheduler.has_work:
        assert [generation.error for generation in scheduler.step()] in ([], [None] * 8)


async def test_tied_weights_may_come_under_either_name(fresh: Http, qwen3: ModelFolders, tmp_path: Path) -> None:
    tensors = load_file(qwen3.second / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    await update(fresh, tmp_path, "1")
    model = load_reference(qwen3.second)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).to(torch.float32)
    tokens, logprobs = sampled(await fresh.generate([5, 6], max_new_tokens=3, temperature=0, ignore_eos=True))
    assert logprobs[0] == pytest.approx(reference_row(model, [5, 6])[tokens[0]].item(), abs=1e-4)


async def test_retraction_alone_changes_no_logprob(qwen3: ModelFolders) -> None:
    with running(options_for(qwen3.first, num_slots=2)) as address:
        async with aiohttp.ClientSession() as session:
            http = Http(address, session)
            tasks = [asyncio.create_task(http.generate(prompt, **LENGTH)) for prompt in PROMPTS]
            await http.until_busy()
            for _ in range(5):
                await http.post("/pause_generation", {"mode": "retract"})
                await http.post("/continue_generation", {})
            model = load_reference(qwen3.first)
            for prompt, answer in zip(PROMPTS, await asyncio.gather(*tasks), strict=True):
                tokens, logprobs = sampled(answer)
                assert len(tokens) == 300
                assert logprobs == pytest.approx(reference_logprobs(model, prompt, tokens), abs=1e-4)
                assert spans_of(answer) == [("0", 0, 300)]
