"""Many updates under continuous load, for any server behind ``fresh``: no deadlock, no mixed version."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from miles.engines.client import EngineClient
from miles.weights.check import WeightCheck
from miles.weights.transport import OneEngine

from .engine_fixtures import Http, ModelFolders, load_reference, reference_logprobs, sampled
from .update_suite import spans_of
from .ways import WAYS, Policy, publishing

NUM_UPDATES = 50
NUM_CLIENTS = 4


@pytest.mark.parametrize("way", WAYS)
async def test_many_updates_under_load(fresh: Http, qwen3: ModelFolders, way: str, tmp_path: Path, record_property: Any) -> None:
    models = [load_reference(qwen3.first), load_reference(qwen3.second)]
    policy, pauses, size = Policy(qwen3.first), [], 0.0
    answers: list[tuple[list[int], dict[str, Any]]] = []
    is_over = asyncio.Event()

    async def ask(number: int) -> None:
        while not is_over.is_set():
            prompt = [5 + number, 17, 33 + len(answers) % 40]
            answers.append((prompt, await fresh.generate(prompt, max_new_tokens=60, ignore_eos=True)))

    async with publishing(way, fresh, policy, tmp_path) as publisher, EngineClient(fresh.address) as client:
        check, load = WeightCheck(policy.weights), [asyncio.create_task(ask(number)) for number in range(NUM_CLIENTS)]
        began = time.monotonic()
        for version in range(1, NUM_UPDATES + 1):
            policy.become(models[version % 2])
            metrics = await publisher.publish(version)
            pauses.append(metrics["perf/engines_paused_time"])
            size = metrics["perf/update_weights_bytes"]
            await check.compare(version, OneEngine(0, client))
            num_answers = len(answers)
            while len(answers) == num_answers:  # the load goes on between two updates
                await asyncio.wait(load, timeout=0.01, return_when=asyncio.FIRST_EXCEPTION)
        seconds = time.monotonic() - began
        is_over.set()
        await asyncio.gather(*load)
    print(f"{way}: {NUM_UPDATES} updates of {size:.0f} bytes in {seconds:.1f} s, longest pause {1000 * max(pauses):.0f} ms")
    record_property("longest_pause_seconds", max(pauses))
    refuse_mixed_versions(answers, models)


def refuse_mixed_versions(answers: list[tuple[list[int], dict[str, Any]]], models: list[Any]) -> None:
    """Every token has the log-prob of the weights of its version; some answers span an update."""
    num_spanning = 0
    for prompt, answer in answers:
        tokens, logprobs = sampled(answer)
        under = [reference_logprobs(model, prompt, tokens) for model in models]
        spans = spans_of(answer)
        num_spanning += len(spans) > 1
        for version, start, end in spans:
            assert logprobs[start:end] == pytest.approx(under[int(version) % 2][start:end], abs=1e-4)
    assert num_spanning
