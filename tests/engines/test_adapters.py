"""LoRA adapters that the embedded engine merges into its weights, also with requests in flight."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web
from safetensors.torch import load_file, save_file

from miles.engines.client import EngineClient
from miles.engines.transfer.adapter import ADAPTER_CONFIG, ADAPTER_FILE
from miles.engines.weight_calls import Landing, load_adapter
from miles.engines.wire import Answer
from miles.errors import EngineError
from miles.policy.export import export_adapters
from miles.types import VersionSpan
from miles.weights.check import WeightCheck
from miles.weights.transport import OneEngine

from .adapter_suite import *  # noqa: F403 - the tests that sglang runs too
from .adapter_suite import AdaptedPolicy, agree, answers_of, sending_adapters
from .engine_fixtures import Http, ModelFolders, load_reference, reference_logprobs
from .scripted import answering, request
from .update_suite import PROMPTS, update

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]


@pytest.fixture
def adapting(fresh: Http) -> Http:
    """Any embedded engine takes adapters."""
    return fresh


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_requests_in_flight_go_on_with_the_new_adapter(
    adapting: Http, qwen3: ModelFolders, tmp_path: Path, mode: str
) -> None:
    policy = AdaptedPolicy(qwen3.first)
    policy.move(1)
    async with EngineClient(adapting.address) as client, sending_adapters(client, policy, tmp_path, mode) as (publisher, _):
        task = asyncio.create_task(answers_of(client, 300))
        await adapting.until_busy()
        await publisher.publish(1)
        answers = await task
    old, new = load_reference(qwen3.first), policy.merged(tmp_path / "merged")
    caught = 0
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert {span.version for span in answer.versions} <= {0, 1}
        first = answer.versions[0]
        under_old = reference_logprobs(old, prompt, list(answer.output_ids))
        assert list(answer.logprobs[: first.end]) == pytest.approx(under_old[: first.end], abs=1e-4) or first.version == 1
        if mode == "retract":
            under_new = reference_logprobs(new, prompt, list(answer.output_ids))
            start = first.end if first.version == 0 else 0
            assert list(answer.logprobs[start:]) == pytest.approx(under_new[start:], abs=1e-4)
        caught += len(answer.versions) == 2
    assert caught


class AskingMeanwhile(EngineClient):
    """Sends a request before and after every call that steers the engine, each of which has arrived when the call goes on."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.asked: list[asyncio.Task[list[Answer]]] = []

    async def steer(self, path: str, body: Mapping[str, Any], *, repeatable: bool) -> Any:
        await self._ask()
        answer = await super().steer(path, body, repeatable=repeatable)
        await self._ask()
        return answer

    async def _ask(self) -> None:
        task = asyncio.create_task(self.generate([request(f"meanwhile-{len(self.asked)}", 8)]))
        self.asked.append(task)
        while not task.done():
            (state,) = (await self.server_info())["internal_states"]
            if state["num_running_requests"] + state["num_waiting_requests"] == len(self.asked):
                return


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_requests_that_arrive_while_adapters_change_get_the_new_one(
    adapting: Http, qwen3: ModelFolders, tmp_path: Path, mode: str
) -> None:
    policy = AdaptedPolicy(qwen3.first)
    async with AskingMeanwhile(adapting.address) as client, sending_adapters(client, policy, tmp_path, mode) as (publisher, _):
        for version in (1, 2):
            policy.move(version)
            await publisher.publish(version)
            new = policy.merged(tmp_path / f"merged-{version}")
            answers = [answer for task in client.asked for answer in await task]
            client.asked.clear()
            assert len(answers) >= 4
            for answer in answers:
                assert answer.versions == (VersionSpan(version, 0, 8),)
                expected = reference_logprobs(new, [5, 6, 7], list(answer.output_ids))
                assert list(answer.logprobs) == pytest.approx(expected, abs=1e-4)


async def test_where_an_engine_replaces_no_adapter_the_new_one_is_loaded_before_the_old_one_goes() -> None:
    loaded: dict[str, str] = {}
    known: list[bool] = []

    async def sglang(http: web.Request) -> web.Response:
        body, words = await http.json() if http.can_read_body else {}, ""
        if http.path == "/unload_lora_adapter":
            del loaded[body["lora_name"]]
        elif http.path == "/load_lora_adapter" and body["lora_name"] in loaded:
            words = f"Failed to load LoRA adapter {body['lora_name']} because it is already loaded"
        elif http.path == "/load_lora_adapter":
            loaded[body["lora_name"]] = body["lora_path"]
        known.append(client.adapter in ("", *loaded))
        return web.json_response({"success": not words, "error_message": words}, status=400 if words else 200)

    async with answering(sglang) as address, EngineClient(address) as client:
        for version in range(1, 5):
            await load_adapter(client, f"folder-{version}", Landing(version, flushes=True))
            assert loaded == {client.adapter: f"folder-{version}"}
            assert client.published == version
    assert all(known)


async def test_an_adapter_on_other_weights_leaves_none_of_the_one_before(
    adapting: Http, qwen3: ModelFolders, tmp_path: Path
) -> None:
    names = ["q_proj", "up_proj"]
    for name in names:
        policy = AdaptedPolicy(qwen3.first, (name,))
        policy.move(1)
        export_adapters(policy.model, tmp_path / name)
        await adapting.ok("/load_lora_adapter", {"lora_name": "policy", "lora_path": str(tmp_path / name)})
        async with EngineClient(adapting.address) as client:
            assert agree(policy.merged(tmp_path / f"merged-{name}"), await answers_of(client))
    await adapting.ok("/unload_lora_adapter", {"lora_name": "policy"})
    async with EngineClient(adapting.address) as client:
        assert agree(load_reference(qwen3.first), await answers_of(client))


async def test_what_the_engine_holds_is_what_the_policy_would_merge(adapting: Http, qwen3: ModelFolders, tmp_path: Path) -> None:
    policy = AdaptedPolicy(qwen3.first)
    async with EngineClient(adapting.address) as client, sending_adapters(client, policy, tmp_path) as (publisher, _):
        check = WeightCheck(policy.weights)
        for version in (1, 2):
            policy.move(version)
            await publisher.publish(version)
            await check.compare(version, OneEngine(0, client))


async def test_other_weights_are_refused_beside_an_adapter(adapting: Http, qwen3: ModelFolders, tmp_path: Path) -> None:
    policy = AdaptedPolicy(qwen3.first)
    async with EngineClient(adapting.address) as client, sending_adapters(client, policy, tmp_path) as (publisher, _):
        await publisher.publish(1)
    for path, body in (
        ("/update_weights_from_disk", {"model_path": str(qwen3.second)}),
        ("/begin_weight_update", {}),
    ):
        assert "the adapter policy is merged" in await adapting.message(body, path)
    status, answer = await adapting.post("/load_lora_adapter", {"lora_name": "b", "lora_path": str(tmp_path / "version-1")})
    assert (status, answer["loaded_adapters"]) == (400, {"policy": "policy"})
    assert "holds one: unload it first" in answer["error_message"]
    await adapting.ok("/unload_lora_adapter", {"lora_name": "policy"})
    await update(adapting, qwen3.second, "2")


def damaged(folder: Path, how: str) -> None:
    """Spoil a folder of adapters."""
    config, tensors = json.loads((folder / ADAPTER_CONFIG).read_text()), load_file(folder / ADAPTER_FILE)
    name = next(name for name in tensors if "lora_A" in name)
    changes: dict[str, dict[str, Any]] = {
        "no plain LoRA: it has use_dora": {},
        "without its other factor": {name.replace("lora_A", "lora_B"): None},
        "no factor of a weight": {"other": torch.ones(1)},
        "weights that the model has not": {
            key.replace("layers.0", "layers.9"): tensor.clone() for key, tensor in tensors.items() if "layers.0" in key
        },
        "does not fit": {name: torch.ones(3, 5)},
    }
    changed = {key: tensor for key, tensor in (tensors | changes[how]).items() if tensor is not None}
    save_file(changed, folder / ADAPTER_FILE)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config | ({"use_dora": True} if "dora" in how else {})))


@pytest.mark.parametrize("words", [
    "no plain LoRA: it has use_dora", "without its other factor", "no factor of a weight", "weights that the model has not",
    "does not fit",
])  # fmt: skip
async def test_an_adapter_that_does_not_fit_changes_nothing(
    adapting: Http, qwen3: ModelFolders, tmp_path: Path, words: str
) -> None:
    policy = AdaptedPolicy(qwen3.first)
    export_adapters(policy.model, tmp_path / "adapter")
    damaged(tmp_path / "adapter", words)
    status, answer = await adapting.post("/load_lora_adapter", {"lora_name": "a", "lora_path": str(tmp_path / "adapter")})
    assert (status, answer["loaded_adapters"]) == (400, {})
    assert words in answer["error_message"]


async def test_an_adapter_that_was_unloaded_is_not_answered_without(adapting: Http, qwen3: ModelFolders, tmp_path: Path) -> None:
    policy = AdaptedPolicy(qwen3.first)
    policy.move(1)
    async with EngineClient(adapting.address) as client, sending_adapters(client, policy, tmp_path) as (publisher, _):
        await publisher.publish(1)
        await adapting.ok("/unload_lora_adapter", {"lora_name": "policy"})
        with pytest.raises(EngineError, match="no such LoRA adapter is loaded"):
            await answers_of(client)
