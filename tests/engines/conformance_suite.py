"""What a server that speaks SGLang's native HTTP API must do, whatever it is.

The tests of this module run where they are imported: ``tests/engines`` against the embedded engine on four models (and
against ``MILES_CONFORMANCE_ADDRESS`` if that is set), ``tests/sglang`` against a real sglang. What is asked of the embedded
engine alone is in ``test_serving.py``.
"""

import asyncio
import uuid

import pytest

from .engine_fixtures import LONG, Http, load_reference, reference_logprobs, reference_row, sampled

PROMPT = [5, 17, 33, 8]


def new_rid() -> str:
    return uuid.uuid4().hex


async def test_fields_of_an_answer(http: Http) -> None:
    rid = new_rid()
    answer = await http.generate(PROMPT, rid=rid, max_new_tokens=6, ignore_eos=True)
    meta = answer["meta_info"]
    tokens, _ = sampled(answer)
    assert meta["id"] == rid
    assert answer["output_ids"] == tokens
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (4, 6)
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    version = (await http.get("/model_info"))[1]["weight_version"]
    assert meta["weight_version"] == version
    assert meta["weight_versions"] == [{"version": version, "start": 0, "end": 6}]
    assert meta["num_retractions"] == 0
    assert all(text is None for _, _, text in meta["output_token_logprobs"])
    assert meta["output_token_logprobs_length"] == 6
    assert isinstance(answer["text"], str)


async def test_no_logprobs_unless_asked(http: Http) -> None:
    answer = await http.ok("/generate", {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}})
    assert "output_token_logprobs" not in answer["meta_info"]


async def test_batches_answer_in_order_with_their_own_parameters(http: Http) -> None:
    rids = [new_rid() for _ in range(20)]
    params = [{"max_new_tokens": 1 + i % 7, "ignore_eos": True} for i in range(20)]
    prompts = [PROMPT + [i + 3] * (i % 5) for i in range(20)]
    answers = await http.ok("/generate", {"rid": rids, "input_ids": prompts, "sampling_params": params})
    assert [answer["meta_info"]["id"] for answer in answers] == rids
    assert [answer["meta_info"]["completion_tokens"] for answer in answers] == [1 + i % 7 for i in range(20)]
    assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [len(prompt) for prompt in prompts]


async def test_one_rid_for_a_batch_is_a_prefix(http: Http) -> None:
    rid = new_rid()
    answers = await http.generate([PROMPT, PROMPT], rid=rid, max_new_tokens=1)
    assert [answer["meta_info"]["id"] for answer in answers] == [f"{rid}_0", f"{rid}_1"]


async def test_text_in_and_text_out(http: Http) -> None:
    body = {"text": "rev:abc=", "sampling_params": {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}}
    answer = await http.ok("/generate", body | {"return_logprob": True, "return_text_in_logprobs": True})
    by_text = [entry[2] for entry in answer["meta_info"]["output_token_logprobs"]]
    assert len(by_text) == 3
    assert all(isinstance(text, str) for text in by_text)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
async def test_logprobs_are_those_of_a_plain_forward_pass(http: Http, temperature: float) -> None:
    model = load_reference((await http.get("/model_info"))[1]["model_path"])
    prompts = [[3 + (7 * i + j) % 90 for j in range(1 + i * 3)] for i in range(12)]
    answers = await http.generate(prompts, max_new_tokens=20, temperature=temperature)
    for prompt, answer in zip(prompts, answers, strict=True):
        tokens, logprobs = sampled(answer)
        # SGLang turns greedy into temperature 1 with top_k 1
        assert logprobs == pytest.approx(reference_logprobs(model, prompt, tokens, temperature or 1.0), abs=1e-4)


async def test_late_joiners_have_right_logprobs(http: Http) -> None:
    model = load_reference((await http.get("/model_info"))[1]["model_path"])
    first = asyncio.create_task(http.generate(PROMPT, max_new_tokens=150, ignore_eos=True))
    await http.until_busy()
    prompts = [[9] * 3, [10, 11, 12, 13, 14, 15], [20]]
    late = [asyncio.create_task(http.generate(prompt, max_new_tokens=30, ignore_eos=True)) for prompt in prompts]
    for prompt, answer in zip([PROMPT, *prompts], await asyncio.gather(first, *late), strict=True):
        tokens, logprobs = sampled(answer)
        assert logprobs == pytest.approx(reference_logprobs(model, prompt, tokens), abs=1e-4)


async def test_greedy_takes_the_most_likely(http: Http) -> None:
    model = load_reference((await http.get("/model_info"))[1]["model_path"])
    tokens, logprobs = sampled(await http.generate(PROMPT, max_new_tokens=8, temperature=0, ignore_eos=True))
    for end in range(8):
        row = reference_row(model, PROMPT + tokens[:end])
        assert logprobs[end] == pytest.approx(row.max().item(), abs=1e-4)


@pytest.mark.parametrize("params", [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 5, "top_p": 0.8}])
async def test_truncation_keeps_to_its_support(http: Http, params: dict[str, float]) -> None:
    model = load_reference((await http.get("/model_info"))[1]["model_path"])
    answers = await http.generate([PROMPT] * 40, max_new_tokens=1, ignore_eos=True, temperature=1.5, **params)
    row = reference_row(model, PROMPT, 1.5)
    support, mass = set(), 0.0
    for token in row.argsort(descending=True).tolist()[: int(params.get("top_k", 100))]:
        if mass > params.get("top_p", 1.0):
            break
        support.add(token)
        mass += row[token].exp().item()
    for answer in answers:
        (token,), (logprob,) = sampled(answer)
        assert token in support
        # before truncation: the plain log-prob, not a renormalised one
        assert logprob == pytest.approx(row[token].item(), abs=1e-4)


async def test_stops(http: Http) -> None:
    tokens, _ = sampled(await http.generate(PROMPT, max_new_tokens=12, temperature=0, ignore_eos=True))
    stop = tokens[4]
    place = tokens.index(stop)
    answer = await http.generate(PROMPT, max_new_tokens=12, temperature=0, stop_token_ids=[stop])
    if 2 not in tokens[:place]:
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
        assert answer["output_ids"] == tokens[: place + 1]
    ignored = await http.generate(PROMPT, max_new_tokens=12, temperature=0, stop_token_ids=[stop], ignore_eos=True)
    assert ignored["meta_info"]["finish_reason"]["type"] == "length"


async def test_stop_strings_are_cut_from_the_text(http: Http) -> None:
    same = {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}
    plain = await http.generate(PROMPT, **same)
    text = plain["text"]
    stop = text[1:3]
    place = text.index(stop)
    answer = await http.generate(PROMPT, stop=stop, **same)
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert answer["text"] == text[:place]
    assert answer["output_ids"] == plain["output_ids"][: len(answer["output_ids"])]
    assert len(answer["output_ids"]) < 40
    kept = await http.generate(PROMPT, stop=["never in it", stop], no_stop_trim=True, **same)
    assert kept["text"] == text[: place + len(stop)]


async def test_abort_one_returns_what_was_sampled(http: Http) -> None:
    rid, other = new_rid(), new_rid()
    aborted = asyncio.create_task(http.generate(PROMPT, rid=rid, **LONG))
    kept = asyncio.create_task(http.generate(PROMPT, rid=other, max_new_tokens=100, ignore_eos=True))
    await http.until_busy()
    assert (await http.post("/abort_request", {"rid": rid}))[0] == 200
    meta = (await aborted)["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert meta["completion_tokens"] == len(meta["output_token_logprobs"]) < LONG["max_new_tokens"]
    assert (await kept)["meta_info"]["completion_tokens"] == 100


async def test_abort_all(http: Http) -> None:
    batch = asyncio.create_task(http.generate([PROMPT] * 12, **LONG))
    await http.until_busy()
    await http.post("/abort_request", {"abort_all": True})
    assert {answer["meta_info"]["finish_reason"]["type"] for answer in await batch} == {"abort"}


async def test_aborting_nobody_is_fine(http: Http) -> None:
    assert (await http.post("/abort_request", {"rid": new_rid()}))[0] == 200
    assert (await http.post("/abort_request", {}))[0] == 200


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_pause_loses_nothing(http: Http, mode: str) -> None:
    same = {"max_new_tokens": 120, "ignore_eos": True}
    running = asyncio.create_task(http.generate(PROMPT, **same))
    await http.until_busy()
    assert (await http.ok("/pause_generation", {"mode": mode}))["status"] == "ok"
    waiting = asyncio.create_task(http.generate([9, 9], max_new_tokens=3, ignore_eos=True))
    done, _ = await asyncio.wait([running, waiting], timeout=0.1)
    assert not done
    assert (await http.ok("/continue_generation", {}))["status"] == "ok"
    meta = (await running)["meta_info"]
    assert meta["completion_tokens"] == 120
    assert meta["num_retractions"] == (1 if mode == "retract" else 0)
    assert (await waiting)["meta_info"]["completion_tokens"] == 3


async def test_pause_abort_ends_all_and_holds_new_ones(http: Http) -> None:
    running = asyncio.create_task(http.generate([PROMPT] * 3, **LONG))
    await http.until_busy()
    await http.ok("/pause_generation", {"mode": "abort"})
    assert {answer["meta_info"]["finish_reason"]["type"] for answer in await running} == {"abort"}
    new = asyncio.create_task(http.generate(PROMPT, max_new_tokens=1))
    done, _ = await asyncio.wait([new], timeout=0.1)
    assert not done
    await http.ok("/continue_generation", {})
    assert (await new)["meta_info"]["completion_tokens"] == 1


async def test_flush_is_refused_under_load(http: Http) -> None:
    running = asyncio.create_task(http.generate(PROMPT, **LONG))
    await http.until_busy()
    assert (await http.post("/flush_cache", {}))[0] == 400
    await http.post("/pause_generation", {"mode": "in_place"})
    assert (await http.post("/flush_cache", {}))[0] == 400
    await http.post("/pause_generation", {"mode": "retract"})
    assert (await http.post("/flush_cache", {}))[0] == 200
    await http.post("/continue_generation", {})
    assert (await running)["meta_info"]["completion_tokens"] == LONG["max_new_tokens"]
    await http.flushed()


async def test_health(http: Http) -> None:
    for path in ("/health", "/health_generate"):
        assert (await http.get(path))[0] == 200
    for path in ("/model_info", "/get_model_info"):
        status, info = await http.get(path)
        assert status == 200
        assert info["is_generation"]


@pytest.mark.parametrize(
    "body",
    [
        {"input_ids": PROMPT, "sampling_params": {"top_p": 2.0}},
        {"input_ids": PROMPT, "sampling_params": {"top_k": 0}},
        {"input_ids": PROMPT, "sampling_params": {"temperature": -1}},
        {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": -1}},
        {"input_ids": PROMPT, "sampling_params": {"no_such": 1}},
        {"input_ids": [5] * 100_000, "sampling_params": {"max_new_tokens": 1}},
        {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 100_000}},
        {"sampling_params": {}},
        {"input_ids": [PROMPT, PROMPT], "rid": ["a", "a"]},
    ],
)
async def test_what_cannot_be_served_is_a_400(http: Http, body: dict[str, object]) -> None:
    status, answer = await http.post("/generate", body)
    assert status == 400
    assert answer
    assert (await http.generate(PROMPT, max_new_tokens=1))["meta_info"]["completion_tokens"] == 1
