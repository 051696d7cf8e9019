"""What an engine's answers and errors are read as, and what ids are on the wire."""

from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from miles.engines.answers import parse_answer, wire_rid
from miles.engines.client import EngineClient
from miles.engines.connection import error_words
from miles.errors import EngineError
from miles.types import VersionSpan

from .scripted import answer_body, answering, request

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=5))
def test_versions_come_from_the_spans(pieces: list[tuple[int, int]]) -> None:
    spans, end = [], 0
    for version, length in pieces:
        spans.append((version, end, end + length))
        end += length
    answer = parse_answer("r", answer_body(spans, end))
    assert answer.versions == tuple(VersionSpan(*span) for span in spans if span[2] > span[1])
    assert len(answer.output_ids) == len(answer.logprobs) == end


@pytest.mark.parametrize(
    "body",
    [
        answer_body([(0, 0, 2)], 3),
        answer_body([(0, 0, 1), (1, 2, 3)], 3),
        answer_body([(0, 1, 3)], 3),
        answer_body([], 3),
        answer_body([(0, 0, 3)], 3, kind="surprise"),
        {"meta_info": {}},
        {},
    ],
)
async def test_answers_of_another_shape_are_refused(body: dict[str, Any]) -> None:
    async def wrong(_: web.Request) -> web.StreamResponse:
        return web.json_response([body])

    async with answering(wrong) as address, EngineClient(address) as client:
        with pytest.raises(EngineError, match="answer to a lacks"):
            await client.generate([request("a")])


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_id_on_the_wire_begins_another(first: str, second: str) -> None:
    assert (first == second) == wire_rid(second).startswith(wire_rid(first))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"error": "plain"}', "plain"),
        (b'{"object": "error", "message": "bad"}', "bad"),
        (b'{"detail": [1]}', "[1]"),
        (b"Flush cache failed.\n", "Flush cache failed."),
    ],
)
def test_words_of_every_shape_of_error(content: bytes, words: str) -> None:
    assert error_words(content) == words
