"""What the embedded engine does beyond SGLang's promises: seeds always count, and nothing kills the server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miles.engines.embedded.runner import TorchRunner
from miles.engines.embedded.work import Work

from .engine_fixtures import LONG, Http, ModelFolders, options_for, running

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]

PROMPT = [5, 17, 33, 8]


@pytest.fixture(scope="module")
def served(folders: dict[str, ModelFolders]) -> Iterator[str]:
    with running(options_for(folders["qwen3"].first, seed=3)) as address:
        yield address


@pytest.fixture
async def http(served: str) -> AsyncIterator[Http]:
    async with aiohttp.ClientSession() as session:
        client = Http(served, session)
        yield client
        await client.post("/continue_generation", {})


async def state(http: Http) -> dict[str, Any]:
    return (await http.get("/server_info"))[1]["internal_states"][0]


async def test_a_seed_fixes_the_answer(http: Http) -> None:
    same = {"max_new_tokens": 12, "sampling_seed": 7, "ignore_eos": True}
    first, again = await http.generate([PROMPT, PROMPT], **same), await http.generate(PROMPT, **same)
    assert first[0]["output_ids"] == first[1]["output_ids"] == again["output_ids"]
    other = await http.generate(PROMPT, **(same | {"sampling_seed": 8}))
    fresh = await http.generate([PROMPT] * 4, max_new_tokens=12, ignore_eos=True)
    assert len({tuple(a["output_ids"]) for a in [again, other, *fresh]}) > 4


async def test_the_servers_seed_fixes_the_seeds_it_gives(qwen3: ModelFolders, http: Http) -> None:
    answers = []
    for _ in range(2):
        with running(options_for(qwen3.first, seed=11)) as address:
            answers.append(await Http(address, http.session).generate([PROMPT] * 3, max_new_tokens=8))
    assert [a["output_ids"] for a in answers[0]] == [a["output_ids"] for a in answers[1]]


async def test_no_tokens_asked_for(http: Http) -> None:
    answer = await http.generate(PROMPT, max_new_tokens=0)
    assert answer["output_ids"] == []
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert answer["meta_info"]["weight_versions"] == [{"version": "0", "start": 0, "end": 0}]


async def test_the_context_can_be_filled_to_the_last_token(http: Http) -> None:
    answer = await http.generate([5] * 500, max_new_tokens=12, ignore_eos=True)
    assert answer["meta_info"]["completion_tokens"] == 12
    assert "exceed the context of 512" in await http.message({"input_ids": [5] * 500, "sampling_params": {"max_new_tokens": 13}})
    open_ended = await http.generate([5] * 505, max_new_tokens=None, ignore_eos=True)
    assert open_ended["meta_info"]["finish_reason"] == {"type": "length", "length": 7}


async def test_end_tokens_end_an_answer(http: Http) -> None:
    answers = await http.generate([PROMPT] * 60, max_new_tokens=60)
    stopped = [a for a in answers if a["meta_info"]["finish_reason"]["type"] == "stop"]
    assert stopped
    for answer in stopped:
        assert answer["meta_info"]["finish_reason"]["matched"] == answer["output_ids"][-1] == 2
        assert 2 not in answer["output_ids"][:-1]
        assert "<eos>" not in answer["text"]


async def test_an_id_in_flight_cannot_be_used_again(http: Http) -> None:
    running_task = asyncio.create_task(http.generate(PROMPT, rid="twice", **LONG))
    await http.until_busy()
    assert "'twice' is already in flight" in await http.message({"input_ids": PROMPT, "rid": "twice"})
    await http.post("/abort_request", {"rid": "tw"})  # a prefix of an id is not an id
    await http.post("/abort_request", {"rid": "twice"})
    assert (await running_task)["meta_info"]["finish_reason"]["type"] == "abort"


async def test_a_waiting_request_is_aborted_in_a_pause(http: Http) -> None:
    await http.post("/pause_generation", {"mode": "in_place"})
    waiting = asyncio.create_task(http.generate(PROMPT, rid="w", max_new_tokens=5))
    while (await state(http))["num_waiting_requests"] == 0:
        assert not waiting.done()
    await http.post("/abort_request", {"rid": "w"})
    answer = await waiting
    assert answer["meta_info"]["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert answer["output_ids"] == []


async def test_a_client_that_leaves_is_aborted(http: Http) -> None:
    await http.post("/pause_generation", {"mode": "in_place"})
    async with aiohttp.ClientSession() as leaver:
        task = asyncio.create_task(Http(http.address, leaver).generate(PROMPT, max_new_tokens=5))
        while (await state(http))["num_waiting_requests"] == 0:
            assert not task.done()
        task.cancel()
        await asyncio.wait([task])
    while (await state(http))["num_waiting_requests"]:
        await http.get("/health")


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/generate", {"input_ids": [100]}, "token id 100 is outside the vocabulary of 100"),
        ("/pause_generation", {"mode": "gently"}, "mode = 'gently' is no way to pause; use one of abort, retract, in_place"),
        ("/pause_generation", {"mod": "abort"}, "/pause_generation has no field 'mod'. Did you mean 'mode'?"),
        ("/pause_generation", [1], "must be a JSON object"),
        ("/abort_request", {"rid": 3}, "rid must be a string"),
        ("/abort_request", {"all": True}, "/abort_request has no field 'all'"),
        ("/update_weights_from_disk", {}, "model_path must be a string"),
        ("/update_weights_from_disk", {"model_path": "x", "weight_version": 3}, "weight_version a string or null, got 'x' and 3"),
        ("/update_weights_from_disk", {"model_path": "x", "is_async": True}, "is_async = True"),
    ],
)
async def test_refusals(http: Http, path: str, body: Any, words: str) -> None:
    assert words in await http.message(body, path)


async def test_bad_json_and_unknown_paths(http: Http) -> None:
    async with http.session.post(f"{http.address}/generate", data=b"{nope") as response:
        assert response.status == 400
        assert "is not JSON" in (await response.json())["error"]["message"]
    status, answer = await http.post("/no_such_path", {})
    assert status == 404
    assert answer["error"]["message"] == "POST /no_such_path: Not Found"
    assert (await http.get("/generate"))[0] == 405


async def test_a_failure_inside_a_step_is_a_500_with_its_words(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(runner: TorchRunner, num_rows: int) -> None:
        raise MemoryError("no room for the scores")

    with monkeypatch.context() as patch:
        patch.setattr(TorchRunner, "decode", broken)
        status, answer = await http.post("/generate", {"input_ids": [PROMPT, PROMPT]})
    assert status == 500
    assert answer["error"]["message"] == "MemoryError while sampling: no room for the scores"
    assert (await http.generate(PROMPT, max_new_tokens=3, ignore_eos=True))["meta_info"]["completion_tokens"] == 3


async def test_server_info(http: Http) -> None:
    _, info = await http.get("/get_server_info")
    assert (info["num_slots"], info["context_len"], info["deterministic"]) == (8, 512, False)
    (state,) = info["internal_states"]
    assert state.pop("work").keys() == Work().to_wire().keys()
    assert state == {"num_running_requests": 0, "num_waiting_requests": 0, "is_paused": False, "weight_version": "0"}


requests = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 25), st.booleans(), st.sampled_from([0.0, 0.7, 1.0])), min_size=1, max_size=20
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=requests)
def test_any_mix_of_requests_is_answered_in_full(served: str, wanted: list[tuple[int, int, bool, float]]) -> None:
    async def ask() -> list[Any]:
        async with aiohttp.ClientSession() as session:
            http = Http(served, session)
            return await asyncio.gather(
                *(
                    http.generate([3 + length] * length, max_new_tokens=new, ignore_eos=ignore, temperature=temperature)
                    for length, new, ignore, temperature in wanted
                )
            )

    for (length, new, ignore, _), answer in zip(wanted, asyncio.run(ask()), strict=True):
        meta = answer["meta_info"]
        assert meta["prompt_tokens"] == length
        assert meta["completion_tokens"] == len(meta["output_token_logprobs"]) == len(answer["output_ids"]) <= new
        assert all(logprob <= 0 for logprob, _, _ in meta["output_token_logprobs"])
        if ignore or meta["finish_reason"]["type"] == "length":
            assert meta["completion_tokens"] == new


async def test_a_probe_that_is_no_http_leaves_no_error_in_the_log(fresh: Http, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await asyncio.open_connection(*fresh.address.removeprefix("http://").split(":"))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert await reader.read()
    writer.close()
    await writer.wait_closed()
    assert not [record for record in caplog.records if record.exc_info]
    assert (await fresh.generate([5], max_new_tokens=1))["output_ids"]
