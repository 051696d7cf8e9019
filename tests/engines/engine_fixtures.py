"""Small models, servers in threads or as processes, and plain HTTP for the engine tests."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import miles.presets
from miles.engines.embedded.options import EmbeddedOptions
from miles.engines.embedded.server import EmbeddedServer
from miles.engines.sglang_server.arguments import SglangOptions
from miles.engines.sglang_server.server import SglangServer
from miles.errors import EngineError

PRESET_MODEL = Path(miles.presets.__file__).parent / "reverse" / "model"
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
CONTEXT_LEN = 512
LONG = {"max_new_tokens": 240, "ignore_eos": True}  # long enough to be caught in flight


@dataclass(frozen=True)
class ModelFolders:
    """A model and the same model with other weights."""

    first: Path
    second: Path


def make_folders(kind: str, root: Path) -> ModelFolders:
    """A random model of a kind, with the preset's tokenizer; untied for Llama, so that both cases are met."""
    config_class, model_class = KINDS[kind]
    config = config_class(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_LEN,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=kind != "llama",
        initializer_range=0.3,
    )
    tokenizer = AutoTokenizer.from_pretrained(PRESET_MODEL)
    folders = ModelFolders(root / kind / "first", root / kind / "second")
    for seed, folder in enumerate((folders.first, folders.second)):
        torch.manual_seed(seed)
        model_class(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folders


def load_reference(folder: Path | str) -> Any:
    """The model by transformers alone, float32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@contextmanager
def running(options: EmbeddedOptions) -> Iterator[str]:
    """An embedded server in a thread of its own; its address."""
    started, stop = threading.Event(), asyncio.Event()
    state: dict[str, Any] = {}

    async def serve() -> None:
        server = EmbeddedServer(options)
        try:
            state["address"] = await server.start()
            state["loop"] = asyncio.get_running_loop()
        except EngineError as error:
            state["error"] = error
            return
        finally:
            started.set()
        await stop.wait()
        await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    started.wait(60)
    if "error" in state:
        thread.join(10)
        raise state["error"]
    try:
        yield state["address"]
    finally:
        state["loop"].call_soon_threadsafe(stop.set)
        thread.join(10)


@contextmanager
def sglang_running(options: SglangOptions, log: Path, start_seconds: float) -> Iterator[str]:
    """Address of a real sglang server, as miles starts it."""
    server = SglangServer(options, log)
    try:
        yield asyncio.run(asyncio.wait_for(server.start(), start_seconds))
    finally:
        asyncio.run(server.stop())


def options_for(folder: Path, **changes: Any) -> EmbeddedOptions:
    """Options of a small server."""
    return replace(EmbeddedOptions(str(folder), num_slots=8, weight_version="0"), **changes)


@dataclass
class Http:
    """Plain HTTP to one server.

    afterwards_seconds: how long after its answer a request may still hold the cache.
    """

    address: str
    session: aiohttp.ClientSession
    afterwards_seconds: float = 0.0

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status, and the body as JSON where it is JSON, else as text."""
        async with self.session.post(self.address + path, json=body) as response:
            is_json = "json" in response.headers.get("Content-Type", "")
            return response.status, await (response.json() if is_json else response.text())

    async def get(self, path: str) -> tuple[int, Any]:
        """See ``post``."""
        async with self.session.get(self.address + path) as response:
            is_json = "json" in response.headers.get("Content-Type", "")
            return response.status, await (response.json() if is_json else response.text())

    async def ok(self, path: str, body: Any) -> Any:
        """The answer to a request that must succeed."""
        status, answer = await self.post(path, body)
        assert status == 200, (status, answer)
        return answer

    async def generate(self, ids: Any, **params: Any) -> Any:
        """``/generate`` with log-probs."""
        rid = params.pop("rid", None)
        return await self.ok("/generate", {"input_ids": ids, "rid": rid, "sampling_params": params, "return_logprob": True})

    async def until_busy(self) -> None:
        """Until a request is in flight: a flush is refused exactly then."""
        status = 200
        while status == 200:
            status, _ = await self.post("/flush_cache", {})

    async def flushed(self) -> None:
        """The cache is flushed, after the last answer."""
        deadline = time.monotonic() + self.afterwards_seconds
        while (await self.post("/flush_cache", {}))[0] != 200:
            assert time.monotonic() < deadline, "a request holds the cache after its answer"

    async def message(self, body: Any, path: str = "/generate") -> str:
        """The words of a request that must be refused."""
        status, answer = await self.post(path, body)
        assert status == 400, (status, answer)
        return answer["error"]["message"] if "error" in answer else answer["message"]


def sampled(answer: dict[str, Any]) -> tuple[list[int], list[float]]:
    """Token ids and log-probs of an answer."""
    entries = answer["meta_info"]["output_token_logprobs"]
    return [entry[1] for entry in entries], [entry[0] for entry in entries]


def reference_logprobs(model: Any, prompt: list[int], tokens: list[int], temperature: float = 1.0) -> list[float]:
    """Log-probs of the tokens by one forward pass over prompt and answer."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


def reference_row(model: Any, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probs [vocabulary] of what follows ``ids``."""
    with torch.no_grad():
        row: torch.Tensor = (model(torch.tensor([ids])).logits[0, -1] / temperature).log_softmax(-1)
    return row
