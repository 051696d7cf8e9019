"""What the OpenAI-style endpoints of a server must give so that its answers can be trained on; runs where it is imported.

As ``conformance_suite``: the same tests against the embedded engine and a real sglang.
"""

import asyncio
from asyncio import CancelledError
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from transformers import AutoTokenizer

from miles.engines.answers import parse_answer
from miles.engines.client import EngineClient
from miles.engines.fleet import EngineFleet
from miles.engines.openai import OpenAiEndpoint
from miles.engines.wire import Answer, GenerateRequest, SamplingParams
from miles.errors import EngineError
from miles.types import Prompt

from .conformance_suite import PROMPT, new_rid
from .engine_fixtures import PRESET_MODEL, Http, load_reference, reference_logprobs

EXAMPLES = Path(__file__).parents[2] / "examples/custom_parts"
MESSAGES = [{"role": "user", "content": "abc"}]
WHOLE = {"logprobs": True, "return_token_ids": True, "return_meta_info": True, "ignore_eos": True}


async def chat(http: Http, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await http.ok("/v1/chat/completions", {"model": "m", "messages": MESSAGES, **WHOLE, **more})
    return answer


async def test_a_chat_answer_can_be_trained_on(http: Http) -> None:
    rid = new_rid()
    reply = await chat(http, rid=rid, max_completion_tokens=6, temperature=0.7)
    (choice,) = reply["choices"]
    assert (reply["id"], reply["object"], reply["model"]) == (rid, "chat.completion", "m")
    assert (choice["finish_reason"], choice["matched_stop"]) == ("length", None)
    tokenizer = AutoTokenizer.from_pretrained(PRESET_MODEL)
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert choice["prompt_token_ids"] == tokenizer(text, add_special_tokens=False)["input_ids"]
    answer = parse_answer(rid, choice)
    assert list(answer.output_ids) == choice["response_token_ids"]
    assert len(answer.output_ids) == 6
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == list(answer.logprobs)
    assert set(choice["logprobs"]["content"][0]) == {"token", "bytes", "logprob", "top_logprobs"}
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == tokenizer.decode(answer.output_ids, skip_special_tokens=True)
    assert reply["usage"]["completion_tokens"] == 6
    assert reply["usage"]["prompt_tokens"] == len(choice["prompt_token_ids"])
    version = (await http.get("/model_info"))[1]["weight_version"]
    assert reply["metadata"] == {"weight_version": version, "weight_versions": [{"version": version, "start": 0, "end": 6}]}


async def test_its_log_probs_are_those_of_a_plain_forward_pass(http: Http) -> None:
    (choice,) = (await chat(http, max_tokens=20, temperature=0.7))["choices"]
    model = load_reference((await http.get("/model_info"))[1]["model_path"])
    expected = reference_logprobs(model, choice["prompt_token_ids"], choice["response_token_ids"], 0.7)
    assert list(parse_answer("r", choice).logprobs) == pytest.approx(expected, abs=1e-4)


async def test_a_chat_of_token_ids_is_what_generate_answers(http: Http) -> None:
    (choice,) = (await chat(http, input_ids=PROMPT, max_completion_tokens=8, temperature=0))["choices"]
    direct = await http.generate(PROMPT, max_new_tokens=8, temperature=0, ignore_eos=True)
    assert choice["prompt_token_ids"] == PROMPT
    assert choice["response_token_ids"] == direct["output_ids"]


async def test_several_answers_to_one_chat(http: Http) -> None:
    reply = await chat(http, n=3, max_completion_tokens=4)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert len({tuple(choice["response_token_ids"]) for choice in reply["choices"]}) > 1
    assert reply["usage"]["completion_tokens"] == 12


async def test_a_plain_chat_carries_no_extensions(http: Http) -> None:
    reply = await http.ok("/v1/chat/completions", {"messages": MESSAGES, "max_completion_tokens": 2})
    (choice,) = reply["choices"]
    assert choice["logprobs"] is None
    assert not {"prompt_token_ids", "response_token_ids", "meta_info"} & set(choice)


async def test_a_stop_is_named_and_cut_off(http: Http) -> None:
    (choice,) = (await chat(http, max_completion_tokens=8, temperature=0, ignore_eos=False))["choices"]
    token = choice["response_token_ids"][0]
    (stopped,) = (await chat(http, max_completion_tokens=8, temperature=0, ignore_eos=False, stop_token_ids=[token]))["choices"]
    assert (stopped["finish_reason"], stopped["matched_stop"]) == ("stop", token)
    assert stopped["response_token_ids"] == [token]
    assert stopped["message"]["content"] == ""


async def test_completions_of_texts_and_ids(http: Http) -> None:
    asked = {"max_tokens": 5, "temperature": 0, "logprobs": 1, "return_token_ids": True, "ignore_eos": True}
    (choice,) = (await http.ok("/v1/completions", {"prompt": PROMPT, **asked}))["choices"]
    assert choice["prompt_token_ids"] == PROMPT
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == len(choice["logprobs"]["tokens"]) == 5
    tokenizer = AutoTokenizer.from_pretrained(PRESET_MODEL)
    assert choice["text"] == tokenizer.decode(choice["token_ids"], skip_special_tokens=True)
    reply = await http.ok("/v1/completions", {"prompt": ["ab", "cd"], "n": 2, **asked})
    assert reply["object"] == "text_completion"
    ids = [tokenizer("ab")["input_ids"], tokenizer("cd")["input_ids"]]
    assert [choice["prompt_token_ids"] for choice in reply["choices"]] == [ids[0], ids[0], ids[1], ids[1]]


async def test_the_model_is_listed(http: Http) -> None:
    status, listed = await http.get("/v1/models")
    assert status == 200
    (card,) = listed["data"]
    assert card["object"] == "model"
    assert card["max_model_len"] >= 512


@pytest.mark.parametrize("wrong", [{"messages": []}, {"messages": MESSAGES, "temperature": -1}, {}])
async def test_what_cannot_be_answered_is_refused(http: Http, wrong: dict[str, Any]) -> None:
    status, answer = await http.post("/v1/chat/completions", wrong)
    assert status in (400, 422)
    assert str(answer)


async def test_user_code_reaches_it_through_the_fleet(http: Http) -> None:
    sampling = SamplingParams(7, 0.7, ignore_eos=True, sampling_seed=3)

    async def ask(endpoint: OpenAiEndpoint) -> Answer:
        body = {"messages": MESSAGES} | endpoint.fields("mine", sampling)
        async with ClientSession() as session, session.post(f"{endpoint.base_url}/chat/completions", json=body) as response:
            return endpoint.answer("mine", (await response.json())["choices"][0])

    fleet = EngineFleet([EngineClient(http.address)])
    answer = await fleet.through_openai(ask)
    await fleet.close()
    assert (answer.rid, len(answer.output_ids), answer.finish_reason) == ("mine", 7, "length")
    assert [span.end for span in answer.versions] == [7]


@pytest.mark.parametrize(
    ("ending", "outcome"), [("cancelled", CancelledError), ("aborted", Answer), ("failed", KeyError), ("failed", EngineError)]
)
async def test_what_user_code_asked_for_ends_with_it(http: Http, ending: str, outcome: type) -> None:
    """Also where its connection stays open, as with clients in threads of their own."""
    fleet, fails = EngineFleet([EngineClient(http.address)]), asyncio.Event()
    replies: list[asyncio.Task[Any]] = []

    async def ask(endpoint: OpenAiEndpoint) -> Answer:
        body = {"messages": MESSAGES} | endpoint.fields("left", SamplingParams(400, ignore_eos=True))
        replies.append(asyncio.create_task(http.ok("/v1/chat/completions", body)))
        if ending == "failed":
            await fails.wait()
            raise outcome("mine")
        return endpoint.answer("left", (await asyncio.shield(replies[0]))["choices"][0])

    asking = asyncio.create_task(fleet.through_openai(ask))
    await http.until_busy()
    if ending == "cancelled":
        asking.cancel()
    elif ending == "aborted":
        await fleet.abort(["left"])
    fails.set()
    (result,) = await asyncio.gather(asking, return_exceptions=True)
    (choice,) = (await replies[0])["choices"]
    await fleet.close()
    assert isinstance(result, outcome)
    assert choice["finish_reason"] == "abort"
    assert len(choice["response_token_ids"]) < 400


async def test_the_example_samples_through_it(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from openai_chat import generate

    tokenizer = AutoTokenizer.from_pretrained(PRESET_MODEL)
    asked = Prompt(0, 0, 0, "<bos>rev:abc=", tuple(tokenizer("<bos>rev:abc=", add_special_tokens=False)["input_ids"]))
    fleet = EngineFleet([EngineClient(http.address)])
    answer = await generate(fleet, asked, SamplingParams(5, temperature=0, ignore_eos=True), "r")
    (direct,) = await fleet.generate([GenerateRequest("d", asked.token_ids, SamplingParams(5, temperature=0, ignore_eos=True))])
    assert (answer.output_ids, answer.logprobs) == (direct.output_ids, pytest.approx(direct.logprobs, abs=1e-5))
    wrong = replace(asked, token_ids=(5,))
    with pytest.raises(EngineError, match="the chat template makes"):
        await generate(fleet, wrong, SamplingParams(5), "w")
    await fleet.close()
