"""Weight updates in flight, for any server behind ``fresh``: a token has the log-prob of the weights it is said to come from."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from .engine_fixtures import Http, ModelFolders, load_reference, reference_logprobs, sampled

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


async def caught_in_flight(http: Http, mode: str, folder: Path) -> list[dict[str, Any]]:
    """Answers during which the weights were replaced in a pause."""
    tasks = [asyncio.create_task(http.generate(prompt, **LENGTH)) for prompt in PROMPTS]
    await http.until_busy()
    await http.ok("/pause_generation", {"mode": mode})
    await update(http, folder, "1", flush_cache=mode == "retract")
    await http.ok("/continue_generation", {})
    return list(await asyncio.gather(*tasks))


async def test_retract_prefills_again_under_the_new_weights(fresh: Http, qwen3: ModelFolders) -> None:
    answers = await caught_in_flight(fresh, "retract", qwen3.second)
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


async def test_in_place_goes_on_from_the_old_cache(fresh: Http, qwen3: ModelFolders) -> None:
    answers = await caught_in_flight(fresh, "in_place", qwen3.second)
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


async def test_200_random_prompts_before_and_after_an_update(fresh: Http, qwen3: ModelFolders) -> None:
    random = Random(0)
    prompts = [[random.randrange(3, 100) for _ in range(random.randrange(1, 24))] for _ in range(200)]
    for folder, version in ((qwen3.first, "0"), (qwen3.second, "1")):
        await update(fresh, folder, version)
        model = load_reference(folder)
        answers = await fresh.generate(prompts, max_new_tokens=8, ignore_eos=True)
        for prompt, answer in zip(prompts, answers, strict=True):
            tokens, logprobs = sampled(answer)
            assert spans_of(answer) == [(version, 0, 8)]
            assert logprobs == pytest.approx(reference_logprobs(model, prompt, tokens), abs=1e-4)
