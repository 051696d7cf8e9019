"""The OpenAI-style endpoints of the embedded engine: what every server must do, and what is this one's own."""

from typing import Any

import pytest

from .engine_fixtures import Http
from .openai_suite import *  # noqa: F403 - the tests
from .openai_suite import MESSAGES

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]


@pytest.fixture
def http(fresh: Http) -> Http:
    return fresh


@pytest.mark.parametrize(("more", "words"), [
    ({"temprature": 1}, "has no field 'temprature'. Did you mean 'temperature'?"),
    ({"tools": [{}]}, "tools = [{}] in /v1/chat/completions is not served by the embedded engine"),
    ({"stream": True}, "is not served"),
    ({"n": 0}, "n = 0 must be a whole number"),
    ({"messages": [{"rolle": "user"}]}, "messages must be a list of objects with the texts role and content"),
    ({"max_completion_tokens": 10_000}, "exceed the context"),
])  # fmt: skip
async def test_refusals_are_sentences(fresh: Http, more: dict[str, Any], words: str) -> None:
    assert words in await fresh.message({"messages": MESSAGES, **more}, "/v1/chat/completions")


@pytest.mark.parametrize(("body", "words"), [
    ({}, "prompt must be a text"),
    ({"prompt": "ab", "logprobs": 5}, "logprobs = 5"),
    ({"prompt": [[]]}, "the prompt is empty"),
])  # fmt: skip
async def test_so_are_those_of_completions(fresh: Http, body: dict[str, Any], words: str) -> None:
    assert words in await fresh.message(body, "/v1/completions")
