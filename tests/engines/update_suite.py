"""Weight updates in flight, for any server behind ``fresh``: a token has the log-prob of the weights it is said to come from."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from miles.engines.client import EngineClient
from miles.errors import WeightMismatchError
from miles.weights.check import WeightCheck
from miles.weights.transport import OneEngine

from .engine_fixtures import Http, ModelFolders, load_reference, reference_logprobs, sampled
from .ways import WAYS, Policy, publishing

PROMPTS = [[5, 17, 33, 8], [7] * 9, [40, 41]]
LENGTH = {"max_new_tokens": 300, "ignore_eos": True}


async def update(http: Http, folder: Path, version: str, **more: Any) -> dict[str, Any]:
    return await http.ok("/update_weights_from_disk", {"model_path": str(folder), "weight_version": version} | more)


def spans_of(answer: dict[str, Any]) -> list[tuple[str, int, int]]:
    spans = answer["meta_info"]["weight_versions"]
    assert spans[0]["start"] == 0
    assert [span["start"] for span in spans[1:]] == [span["end"] for span in spans[:-1]]
    assert spans[-1]["end"] == answer["meta_info"]["completion_tokens"]
    return [(span["version"], span["start"], span["end"]) for span in spans]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """A transport."""
    return str(request.param)


async def caught_in_flight(http: Http, mode: str, folder: Path, way: str, aside: Path) -> list[dict[str, Any]]:
    """Answers during which the weights were replaced in a pause."""
    async with publishing(way, http, Policy(folder), aside, mode) as publisher:
        tasks = [asyncio.create_task(http.generate(prompt, **LENGTH)) for prompt in PROMPTS]
        await http.until_busy()
        await publisher.publish(1)
        return list(await asyncio.gather(*tasks))


async def test_retract_prefills_again_under_the_new_weights(fresh: Http, qwen3: ModelFolders, way: str, tmp_path: Path) -> None:
    answers = await caught_in_flight(fresh, "retract", qwen3.second, way, tmp_path)
    old, new = load_reference(qwen3.first), load_reference(qwen3.second)
    num_caught = 0
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        tokens, logprobs = sampled(answer)
        under = {"0": reference_logprobs(old, prompt, tokens), "1": reference_logprobs(new, prompt, tokens)}
        for version, start, end in spans_of(answer):
            assert logprobs[start:end] == pytest.approx(under[version][start:end], abs=1e-4)
        num_caught += len(answer["meta_info"]["weight_versions"]) == 2
        assert answer["meta_info"]["weight_version"] == "1"
    assert num_caught
    assert any(answer["meta_info"]["num_retractions"] == 1 for answer in answers)


async def test_in_place_goes_on_from_the_old_cache(fresh: Http, qwen3: ModelFolders, way: str, tmp_path: Path) -> None:
    answers = await caught_in_flight(fresh, "in_place", qwen3.second, way, tmp_path)
    old, new = load_reference(qwen3.first), load_reference(qwen3.second)
    caught = [(p, a) for p, a in zip(PROMPTS, answers, strict=True) if len(spans_of(a)) == 2]
    assert caught
    for prompt, answer in caught:
        tokens, logprobs = sampled(answer)
        boundary = spans_of(answer)[0][2]
        assert logprobs[:boundary] == pytest.approx(reference_logprobs(old, prompt, tokens)[:boundary], abs=1e-4)
        assert logprobs[boundary:] == pytest.approx(continued(old, new, prompt, tokens, boundary), abs=1e-4)
        # the old cache matters: a clean forward pass under the new weights says something else
        assert logprobs[boundary:] != pytest.approx(reference_logprobs(new, prompt, tokens)[boundary:], abs=1e-4)


def continued(old: Any, new: Any, prompt: list[int], tokens: list[int], boundary: int) -> list[float]:
    """Log-probs of the tokens from ``boundary`` on by ``new`` over keys and values of ``old``.

    The newest token's keys are made when the one after it is sampled, so those of token ``boundary - 1`` are ``new``'s.
    """
    with torch.no_grad():
        cache = old(torch.tensor([prompt + tokens[: boundary - 1]]), use_cache=True).past_key_values
        logits = new(torch.tensor([tokens[boundary - 1 : -1]]), past_key_values=cache).logits[0]
    return logits.log_softmax(-1).gather(1, torch.tensor(tokens[boundary:])[:, None])[:, 0].tolist()


async def test_200_random_prompts_before_and_after_an_update(fresh: Http, qwen3: ModelFolders, way: str, tmp_path: Path) -> None:
    random = Random(0)
    prompts = [[random.randrange(3, 100) for _ in range(random.randrange(1, 24))] for _ in range(200)]
    policy = Policy(qwen3.first)
    async with publishing(way, fresh, policy, tmp_path) as publisher:
        for folder, version in ((qwen3.first, 0), (qwen3.second, 1)):
            model = load_reference(folder)
            policy.become(model)
            await publisher.publish(version)
            answers = await fresh.generate(prompts, max_new_tokens=8, ignore_eos=True)
            for prompt, answer in zip(prompts, answers, strict=True):
                tokens, logprobs = sampled(answer)
                assert spans_of(answer) == [(str(version), 0, 8)]
                assert logprobs == pytest.approx(reference_logprobs(model, prompt, tokens), abs=1e-4)


async def test_an_engine_holds_what_was_published(fresh: Http, qwen3: ModelFolders, way: str, tmp_path: Path) -> None:
    policy = Policy(qwen3.second)
    async with publishing(way, fresh, policy, tmp_path) as publisher, EngineClient(fresh.address) as client:
        engine, check = OneEngine(0, client), WeightCheck(policy.weights)
        with pytest.raises(WeightMismatchError, match="does not hold weights version 1 as the policy has it: [1-9]"):
            await check.compare(1, engine)
        await publisher.publish(1)
        await check.compare(1, engine)
        policy.become(load_reference(qwen3.first))
        await check.compare_again(1, engine)  # by what the policy had then
        with pytest.raises(WeightMismatchError):
            await check.compare(2, engine)


async def test_groups_end_with_their_run(fresh: Http, qwen3: ModelFolders, tmp_path: Path) -> None:
    async with publishing("broadcast", fresh, Policy(qwen3.second), tmp_path) as publisher:
        for version in (1, 2):  # a group for each: who has parted and publishes again meets the engine again
            await publisher.publish(version)
            assert await publisher.part() == []
    for number in (0, 1):
        group = {"group_name": f"miles-{tmp_path.name}-{number}"}
        assert "does not exist" in await fresh.message(group, "/destroy_weights_update_group")


async def test_buckets_are_refused_outside_a_session(fresh: Http) -> None:
    for path in ("/update_weights_from_tensor", "/update_weights_from_distributed"):
        body = {"serialized_named_tensors": ["eA=="]} if "tensor" in path else {"names": [], "dtypes": [], "shapes": []}
        assert "must run between begin_weight_update" in await fresh.message(body, path)
    await fresh.ok("/begin_weight_update", {})
    assert "already open" in await fresh.message({}, "/begin_weight_update")
    await fresh.ok("/end_weight_update", {})
    assert "no weight-update session is open" in await fresh.message({}, "/end_weight_update")
    assert "does not exist" in await fresh.message({"group_name": "nobody"}, "/destroy_weights_update_group")


async def test_released_memory_comes_back(fresh: Http, qwen3: ModelFolders) -> None:
    await fresh.ok("/pause_generation", {"mode": "retract"})
    await fresh.ok("/release_memory_occupation", {"tags": ["kv_cache", "weights"]})
    waiting = asyncio.create_task(fresh.generate([5, 6], max_new_tokens=4, ignore_eos=True))
    await fresh.ok("/resume_memory_occupation", {"tags": ["weights"]})
    await update(fresh, qwen3.second, "1")
    await fresh.ok("/resume_memory_occupation", {"tags": ["kv_cache"]})
    await fresh.ok("/continue_generation", {})
    tokens, logprobs = sampled(await waiting)
    assert logprobs == pytest.approx(reference_logprobs(load_reference(qwen3.second), [5, 6], tokens), abs=1e-4)
