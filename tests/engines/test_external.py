"""Servers of the user: another model is refused with what differs, another version is said."""

import json
import shutil
from pathlib import Path

import pytest

from miles.engines.client import EngineClient
from miles.engines.external import check_external_engines, config_differences, full_address, leave_running, version_notes
from miles.errors import EngineError

from .engine_fixtures import ModelFolders, options_for, running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]


def test_a_bare_address_gets_its_protocol() -> None:
    assert full_address("host:1") == "http://host:1"
    assert full_address("https://host:1") == "https://host:1"


def test_only_what_both_say_is_compared() -> None:
    assert config_differences({"hidden_size": 1, "vocab_size": 3}, {"hidden_size": 2, "head_dim": 4}) == [
        "hidden_size is 1, not 2"
    ]


def test_another_version_is_said_and_no_version_is_not() -> None:
    assert version_notes("http://a", None) == []
    (note,) = version_notes("http://a", "0.4.0")
    assert "0.4.0" in note


@pytest.mark.parametrize("change", ["", "hidden_size", "tokenizer"])
async def test_the_served_model_must_be_the_trained_one(qwen3: ModelFolders, tmp_path: Path, change: str) -> None:
    ours = tmp_path / "ours"
    shutil.copytree(qwen3.second, ours)
    if change == "hidden_size":
        config = json.loads((ours / "config.json").read_text())
        (ours / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    if change == "tokenizer":
        (ours / "tokenizer.json").write_text("{}")
    with running(options_for(qwen3.first)) as address:
        async with EngineClient(address) as client:
            if not change:
                assert await check_external_engines([client], ours) == []
                return
            with pytest.raises(EngineError, match=f"another model.*{change}"):
                await check_external_engines([client], ours)


async def test_a_server_that_is_not_there_is_named() -> None:
    async with EngineClient("http://127.0.0.1:9") as client:
        with pytest.raises(EngineError, match="127.0.0.1:9/model_info cannot be reached"):
            await check_external_engines([client], Path("/models/m"))


async def test_a_server_is_not_left_paused(qwen3: ModelFolders) -> None:
    with running(options_for(qwen3.first)) as address:
        async with EngineClient(address) as client, EngineClient("http://127.0.0.1:9") as gone:
            await client.pause("retract")
            (note,) = await leave_running([client, gone])
            assert "127.0.0.1:9" in note
            assert "may still be paused" in note
            assert (await client.server_info())["internal_states"][0]["is_paused"] is False
