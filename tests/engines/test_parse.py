"""Bodies of /generate: what is understood, and the sentences for what is not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles.engines.embedded.parse import BadRequestError, Limits, parse_generate
from miles.engines.embedded.request import Request

pytestmark = pytest.mark.unit

LIMITS = Limits(context_len=20, vocab_size=50, encode=lambda text: [ord(c) % 50 for c in text], new_seed=lambda: 99)


def one(**body: Any) -> Any:
    (request,), _ = parse_generate({"input_ids": [1, 2]} | body, LIMITS)
    return request


def words(body: Any) -> str:
    with pytest.raises(BadRequestError) as caught:
        parse_generate(body, LIMITS)
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ([], "must be a JSON object"),
        ({"input_ids": [1], "sampling_param": {}}, "no field 'sampling_param'. Did you mean 'sampling_params'?"),
        ({"input_ids": [1], "sampling_params": {"temprature": 1}}, "no field 'temprature'. Did you mean 'temperature'?"),
        ({"input_ids": [1], "zzz": 1}, "no field 'zzz'. Known fields: rid, text"),
        ({"input_ids": [1], "stream": True}, "stream = True in /generate is not served by the embedded engine"),
        ({"input_ids": [1], "sampling_params": {"min_p": 0.1}}, "min_p = 0.1 in sampling_params is not served"),
        ({}, "Give either text or input_ids"),
        ({"input_ids": [1], "text": "a"}, "Give either text or input_ids"),
        ({"input_ids": []}, "not empty"),
        ({"input_ids": [[1], []]}, "the prompt is empty"),
        ({"input_ids": "abc"}, "must be a list of token ids"),
        ({"input_ids": [1, "a"]}, "found something else"),
        ({"input_ids": [[1], 2]}, "found something else"),
        ({"input_ids": [1, True]}, "found something else"),
        ({"text": []}, "text must be a string"),
        ({"text": [1]}, "text must be a string"),
        ({"input_ids": [50]}, "token id 50 is outside the vocabulary of 50"),
        ({"input_ids": [-1]}, "token id -1 is outside the vocabulary"),
        ({"input_ids": [1] * 20}, "the prompt has 20 tokens, the context holds 20"),
        ({"input_ids": [1] * 15, "sampling_params": {"max_new_tokens": 6}}, "15 prompt tokens and max_new_tokens = 6 exceed"),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens = -1: Input should be greater"),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": 1.5}}, "max_new_tokens = 1.5"),
        ({"input_ids": [1], "sampling_params": {"temperature": -0.1}}, "temperature = -0.1"),
        ({"input_ids": [1], "sampling_params": {"temperature": float("inf")}}, "temperature = inf"),
        ({"input_ids": [1], "sampling_params": {"top_p": 0}}, "top_p = 0"),
        ({"input_ids": [1], "sampling_params": {"top_k": 0}}, "top_k = 0: must be -1 (keep all) or at least 1"),
        ({"input_ids": [1], "sampling_params": {"top_k": -2}}, "top_k = -2"),
        ({"input_ids": [1], "sampling_params": {"sampling_seed": 2**63}}, "sampling_seed"),
        ({"input_ids": [1], "sampling_params": {"stop": [""]}}, "empty stop string"),
        ({"input_ids": [1], "sampling_params": {"stop": ["a"] * 33}}, "stop"),
        ({"input_ids": [1], "sampling_params": {"ignore_eos": "yes"}}, "ignore_eos = 'yes'"),
        ({"input_ids": [1], "sampling_params": 3}, "sampling_params must be an object"),
        ({"input_ids": [[1], [2]], "sampling_params": [{}]}, "sampling_params has 1 entries for 2 prompts"),
        ({"input_ids": [[1], [2]], "rid": ["a"]}, "rid has 1 entries for 2 prompts"),
        ({"input_ids": [[1], [2]], "rid": ["a", "a"]}, "names one request twice"),
        ({"input_ids": [1], "rid": 7}, "rid must be a string"),
        ({"input_ids": [1], "return_logprob": "yes"}, "return_logprob must be true, false"),
        ({"input_ids": [[1], [2]], "return_logprob": [True]}, "return_logprob must be true, false"),
    ],
)
def test_refusals(body: Any, expected: str) -> None:
    assert expected in words(body)


def test_all_problems_of_the_sampling_parameters_come_at_once() -> None:
    both = words({"input_ids": [1], "sampling_params": {"top_p": 2, "temperature": "hot"}})
    assert "top_p = 2" in both
    assert "temperature = 'hot'" in both


def test_neutral_values_of_fields_that_are_not_served_are_accepted() -> None:
    request = one(stream=False, logprob_start_len=-1, sampling_params={"min_p": 0.0, "n": 1, "repetition_penalty": 1.0})
    assert request.input_ids == (1, 2)


def test_null_means_default() -> None:
    assert one(sampling_params={"temperature": None, "top_p": None, "stop": None}).sampling == one().sampling
    assert one(sampling_params=None).sampling == one().sampling


def test_an_open_length_is_cut_to_the_context() -> None:
    assert one(sampling_params={"max_new_tokens": None}).sampling.max_new_tokens == 18
    assert one().sampling.max_new_tokens == 18
    assert one(sampling_params={"max_new_tokens": 0}).sampling.max_new_tokens == 0


def test_tiny_temperatures_are_greedy() -> None:
    greedy = one(sampling_params={"temperature": 1e-7, "top_k": 9}).sampling
    assert greedy.is_greedy
    assert greedy.temperature == 1.0
    assert not one(sampling_params={"temperature": 0.01}).sampling.is_greedy


def test_requests_without_a_seed_get_one_each() -> None:
    seeds = iter(range(100))
    limits = Limits(20, 50, LIMITS.encode, lambda: next(seeds))
    fresh, _ = parse_generate({"input_ids": [[1]] * 5}, limits)
    assert len({request.sampling.seed for request in fresh}) == 5
    given_seed, _ = parse_generate({"input_ids": [[1]] * 5, "sampling_params": {"sampling_seed": 4}}, limits)
    assert {request.sampling.seed for request in given_seed} == {4}


def test_a_top_k_beyond_the_vocabulary_keeps_all_of_it() -> None:
    assert one(sampling_params={"top_k": 10**30}).sampling.top_k == 50
    assert one(sampling_params={"top_k": -1}).sampling.top_k == 0


def test_text_is_encoded() -> None:
    (request,), is_batch = parse_generate({"text": "ab"}, LIMITS)
    assert (request.input_ids, is_batch) == ((47, 48), False)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["rid", "text", "input_ids", "sampling_params", "return_logprob", "stream", "return_text_in_logprobs"])
sampling_names = st.sampled_from(
    ["max_new_tokens", "temperature", "top_p", "top_k", "stop", "stop_token_ids", "sampling_seed", "n"]
)


@given(st.dictionaries(names, json_values), st.dictionaries(sampling_names, json_values))
def test_any_body_is_understood_or_refused_with_a_sentence(body: dict[str, Any], sampling: dict[str, Any]) -> None:
    for candidate in (body, {"input_ids": [1, 2], "sampling_params": sampling}, {"input_ids": [[1], [2]]} | body):
        for request in understood(candidate):
            assert 0 < len(request.input_ids) < LIMITS.context_len
            assert len(request.input_ids) + request.sampling.max_new_tokens <= LIMITS.context_len


def understood(body: dict[str, Any]) -> list[Request]:
    """The requests of a body; none if it is refused, which takes a sentence. Anything else is a failure."""
    try:
        return parse_generate(body, LIMITS)[0]
    except BadRequestError as error:
        if len(str(error)) < 10:
            raise
        return []
