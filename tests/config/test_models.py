"""A model is a folder or a name in the local cache; one that does not suit the request is refused before anything starts."""

import json

import pytest

from miles.config.hub import cached_model, is_hub_name
from miles.config.tokenizer_files import has_chat_template, largest_token_id
from tests.config.support import Bench

pytestmark = pytest.mark.unit


@pytest.fixture
def bench(tmp_path):
    """A bench of its own, since its model is changed."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a", "label": "b"}\n')
    return Bench(tmp_path)


@pytest.fixture
def cache(bench, monkeypatch):
    """A hub cache with one model, two revisions of it."""
    monkeypatch.setenv("HF_HUB_CACHE", str(bench.folder / "hub"))
    model = bench.folder / "hub/models--made--tiny"
    for revision in ("old", "new"):
        (model / "snapshots" / revision).mkdir(parents=True)
        (model / "snapshots" / revision / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}))
    (model / "refs").mkdir()
    (model / "refs/main").write_text("new")
    return model / "snapshots/new"


def test_a_name_on_the_hub_is_the_folder_that_was_downloaded(bench, cache):
    found = bench.resolve("train", {"hf_checkpoint": "made/tiny"})
    assert found.config.model.hf_checkpoint == cache
    assert cached_model("made/tiny") == cache
    (row,) = [row for row in found.rows if row.option == "hf_checkpoint"]
    assert row.value == str(cache)


def test_a_name_that_was_not_downloaded_says_how(bench, cache):
    (problem,) = bench.examine("train", {"hf_checkpoint": "made/other"}).problems
    assert problem.value == "made/other"
    assert problem.remedy.startswith("Download it first: `hf download made/other`")
    (plain,) = bench.examine("train", {"hf_checkpoint": "/made/other/folder"}).problems
    assert plain.remedy.startswith("Correct the path")
    assert not is_hub_name("../other") and not is_hub_name("a/b/c") and is_hub_name("Qwen/Qwen3-0.6B")


def test_a_folder_goes_before_a_name(bench, cache):
    (bench.folder / "made/tiny").mkdir(parents=True)
    (bench.folder / "made/tiny/config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    assert bench.resolve("train", {"hf_checkpoint": "made/tiny", "rollout_max_response_len": "8"}).derived.max_context_len == 64


def test_a_tokenizer_larger_than_the_model_is_refused(bench):
    model = bench.folder / "model"
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": 4096, "vocab_size": 3}))
    tokens = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2}]}
    (model / "tokenizer.json").write_text(json.dumps(tokens))
    assert largest_token_id(model) == 2
    assert not bench.examine("train").problems
    (model / "tokenizer.json").write_text(json.dumps(tokens | {"added_tokens": [{"id": 3}]}))
    (problem,) = bench.examine("train").problems
    assert "largest token id is 3, and a model of only 3 tokens" in problem.why


def test_a_chat_template_that_is_asked_for_is_there(bench):
    model = bench.folder / "model"
    assert has_chat_template(model) is None
    assert not bench.examine("train", {"apply_chat_template": True}).problems
    (model / "tokenizer_config.json").write_text("{}")
    (problem,) = bench.examine("train", {"apply_chat_template": True}).problems
    assert problem.option == "apply_chat_template" and "has none" in problem.why
    (bench.folder / "prompts.jsonl").write_text('{"messages": []}\n')
    (problem,) = bench.examine("sft", {"example_format": "messages"}).problems
    assert problem.option == "example_format"
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert not bench.examine("sft", {"example_format": "messages"}).problems
