"""LoRA adapters sent alone, for any server behind ``adapting``: engines sample as from the merged weights."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from miles.clock import WallClock
from miles.config.options.lora import LoraOptions
from miles.engines.client import EngineClient
from miles.engines.wire import Answer, GenerateRequest, SamplingParams
from miles.policy.adapters import add_adapters
from miles.policy.export import export_adapters, export_weights
from miles.policy.model import PolicyModel
from miles.policy.ranks import OneRank
from miles.policy.sender import WeightSender
from miles.types import VersionSpan
from miles.weights.disk import AdapterTransport
from miles.weights.publish import Publisher
from miles.weights.transport import OneEngine

from .engine_fixtures import Http, ModelFolders, load_reference, reference_logprobs
from .update_suite import PROMPTS
from .ways import Fleet, Policy


class AdaptedPolicy(Policy):
    """A model with adapters; ``move`` is its training step."""

    def __init__(self, folder: Path, targets: tuple[str, ...] = ()) -> None:
        super().__init__(folder)
        model = PolicyModel(self.model)
        add_adapters(model, LoraOptions(lora_rank=3, lora_alpha=5.0, lora_targets=targets), base=folder, seed=0)
        self.model = model.causal_lm
        self.sender = WeightSender(self.model, OneRank())

    @torch.no_grad()
    def move(self, seed: int) -> None:
        """Adapters that change every answer."""
        made = torch.Generator().manual_seed(seed)
        for name, parameter in self.model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=made))

    async def export_adapters(self, folder: Path) -> None:
        """As the actor."""
        await asyncio.to_thread(export_adapters, self.model, folder)

    def merged(self, folder: Path) -> Any:
        """What a merged publication would bring, by transformers alone."""
        export_weights(self.model, folder)
        return load_reference(folder)


@asynccontextmanager
async def sending_adapters(
    client: EngineClient, policy: AdaptedPolicy, folder: Path, mode: Any = "retract"
) -> AsyncIterator[tuple[Publisher, Fleet]]:
    """A publisher of adapters to one server."""
    fleet = Fleet(client)
    yield Publisher(AdapterTransport(policy, folder), fleet, mode, 30.0, WallClock()), fleet


async def answers_of(client: EngineClient, length: int = 8) -> list[Answer]:
    """An answer to every prompt."""
    sampling = SamplingParams(length, ignore_eos=True)
    return await client.generate([GenerateRequest(f"r{at}", tuple(ids), sampling) for at, ids in enumerate(PROMPTS)])


def agree(model: Any, answers: list[Answer]) -> bool:
    """Whether log-probs are the model's."""
    return all(
        list(answer.logprobs) == pytest.approx(reference_logprobs(model, prompt, list(answer.output_ids)), abs=1e-4)
        for prompt, answer in zip(PROMPTS, answers, strict=True)
    )


async def test_an_adapter_alone_is_what_merged_weights_are(adapting: Http, qwen3: ModelFolders, tmp_path: Path) -> None:
    policy = AdaptedPolicy(qwen3.first)
    async with EngineClient(adapting.address) as client, sending_adapters(client, policy, tmp_path) as (publisher, _):
        assert agree(load_reference(qwen3.first), await answers_of(client))
        for version in (1, 2):
            policy.move(version)
            await publisher.publish(version)
            answers = await answers_of(client)
            assert agree(policy.merged(tmp_path / f"merged-{version}"), answers)
            assert not agree(load_reference(qwen3.first), answers)
            assert [answer.versions for answer in answers] == [(VersionSpan(version, 0, 8),)] * len(PROMPTS)
    await adapting.ok("/unload_lora_adapter", {"lora_name": "policy"})
    async with EngineClient(adapting.address) as client:
        assert agree(load_reference(qwen3.first), await answers_of(client))


async def test_an_adapter_that_is_not_loaded_is_refused(adapting: Http) -> None:
    words = await adapting.message({"input_ids": [5], "lora_path": "other", "sampling_params": {}})
    assert "other" in words
    for path, body in (
        ("/unload_lora_adapter", {"lora_name": "other"}),
        ("/load_lora_adapter", {"lora_name": "a", "lora_path": "gone"}),
    ):
        status, answer = await adapting.post(path, body)
        assert (status, answer["success"]) == (400, False)


async def test_an_engine_that_comes_back_gets_the_adapter(adapting: Http, qwen3: ModelFolders, tmp_path: Path) -> None:
    policy = AdaptedPolicy(qwen3.first)
    policy.move(1)
    async with EngineClient(adapting.address) as client, sending_adapters(client, policy, tmp_path) as (publisher, fleet):
        await publisher.publish(1)
        await adapting.ok("/unload_lora_adapter", {"lora_name": "policy"})  # a new process holds none
        async with EngineClient(adapting.address) as again:
            assert fleet.reload is not None
            await fleet.reload(0, again)
            assert agree(policy.merged(tmp_path / "merged"), await answers_of(again))
            assert OneEngine(0, again).serving[0].published == 1
    await adapting.ok("/unload_lora_adapter", {"lora_name": "policy"})
