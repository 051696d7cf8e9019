"""Servers that the user started: looked at before a run uses them, and never ended by it."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from miles.engines.client import EngineClient
from miles.errors import EngineError

TESTED_SGLANG = "0.5.23"
SHAPE_KEYS = (
    "model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "tie_word_embeddings",
)  # fmt: skip
TOKENIZER_FILE = "tokenizer.json"
REMEDY = (
    "It is a server of yours, so miles neither ends nor restarts it. Look at its log, mend it or take its address out of "
    "--rollout-external-engine-addrs, and start again with the same --run-dir."
)


def full_address(address: str) -> str:
    """``host:port`` as an address with its protocol."""
    return address if "://" in address else f"http://{address}"


async def check_external_engines(clients: Sequence[EngineClient], model: Path) -> list[str]:
    """Look at every server; what is odd about them, a sentence each.

    Raises:
        EngineError: one cannot be reached or serves another model than ``model``.
    """
    notes = await asyncio.gather(*(check_external_engine(client, model) for client in clients))
    return [note for each in notes for note in each]


async def check_external_engine(client: EngineClient, model: Path) -> list[str]:
    """As ``check_external_engines``, for one."""
    info, server = await client.model_info(), await client.server_info()
    served = Path(info.get("tokenizer_path") or info["model_path"])
    differences = config_differences(served_config(info, served), read_json(model / "config.json"))
    if is_other_tokenizer(served, model):
        differences.append(f"{TOKENIZER_FILE} of {served} is another")
    if differences:
        raise EngineError(
            f"{client.address} serves another model than --hf-checkpoint {model}: {'; '.join(differences)}. "
            "Start the server with this model, or take its address out of --rollout-external-engine-addrs."
        )
    return version_notes(client.address, server.get("version"))


def served_config(info: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """The configuration of the served model: whole where its folder can be read here, else what the server says of it."""
    file = folder / "config.json"
    return read_json(file) if file.is_file() else {key: info[key] for key in ("model_type", "architectures") if info.get(key)}


def config_differences(served: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Where two configurations make models of other shapes; keys that only one of them has are not compared."""
    keys = [key for key in SHAPE_KEYS if key in served and key in ours and served[key] != ours[key]]
    return [f"{key} is {served[key]!r}, not {ours[key]!r}" for key in keys]


def is_other_tokenizer(served: Path, ours: Path) -> bool:
    """Whether both tokenizers can be read here and differ."""
    files = [folder / TOKENIZER_FILE for folder in (served, ours)]
    return all(file.is_file() for file in files) and files[0].read_bytes() != files[1].read_bytes()


def version_notes(address: str, version: str | None) -> list[str]:
    """What to know about the server's version; an embedded engine says none."""
    if version in (None, TESTED_SGLANG):
        return []
    return [f"{address} runs sglang {version}; miles was tested with {TESTED_SGLANG}"]


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object from a file.

    Raises:
        EngineError: it cannot be read.
    """
    try:
        content: Mapping[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise EngineError(f"{path} cannot be read: {error}.") from error
    return content


async def leave_running(clients: Sequence[EngineClient]) -> list[str]:
    """Let servers decode again that a failed update may have left paused; what was not possible, a sentence each."""
    results = await asyncio.gather(*(client.continue_generation() for client in clients), return_exceptions=True)
    return [f"{error} It may still be paused." for error in results if isinstance(error, EngineError)]
