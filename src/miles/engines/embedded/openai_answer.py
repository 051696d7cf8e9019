"""Finished generations as SGLang's OpenAI-style endpoints answer them."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from miles.engines.embedded.answer import answer_of
from miles.engines.embedded.request import Generation


def chat_answer(body: Mapping[str, Any], generations: Sequence[Generation], tokenizer: Any) -> dict[str, Any]:
    """The JSON object of ``/v1/chat/completions``."""
    choices = [_chat_choice(body, place, generation, tokenizer) for place, generation in enumerate(generations)]
    return _whole("chat.completion", body, generations, choices, num_prompts=1)


def completion_answer(body: Mapping[str, Any], generations: Sequence[Generation], tokenizer: Any) -> dict[str, Any]:
    """The JSON object of ``/v1/completions``."""
    choices = [_completion_choice(body, place, generation, tokenizer) for place, generation in enumerate(generations)]
    return _whole("text_completion", body, generations, choices, num_prompts=len(generations) // int(body.get("n") or 1))


def _chat_choice(body: Mapping[str, Any], place: int, generation: Generation, tokenizer: Any) -> dict[str, Any]:
    answer = answer_of(generation, tokenizer)
    message = {"role": "assistant", "content": answer["text"], "reasoning_content": None}
    choice = {"index": place, "message": message, "logprobs": None, **_ending(generation)}
    if body.get("logprobs"):
        choice["logprobs"] = {"content": [_token(*entry) for entry in answer["meta_info"]["output_token_logprobs"]]}
    if body.get("return_token_ids") or body.get("return_prompt_token_ids"):
        choice["prompt_token_ids"] = list(generation.request.input_ids)
    if body.get("return_token_ids"):
        choice["response_token_ids"] = answer["output_ids"]
    if body.get("return_meta_info"):
        choice["meta_info"] = answer["meta_info"]
    return choice


def _completion_choice(body: Mapping[str, Any], place: int, generation: Generation, tokenizer: Any) -> dict[str, Any]:
    answer = answer_of(generation, tokenizer)
    choice = {"index": place, "text": answer["text"], "logprobs": None, **_ending(generation)}
    if body.get("logprobs") is not None:
        entries = answer["meta_info"]["output_token_logprobs"]
        choice["logprobs"] = {
            "text_offset": [-1] * len(entries),
            "token_logprobs": [logprob for logprob, _, _ in entries],
            "tokens": [text for _, _, text in entries],
            "top_logprobs": [],
        }
    if body.get("return_token_ids"):
        choice |= {"token_ids": answer["output_ids"], "prompt_token_ids": list(generation.request.input_ids)}
    return choice


def _token(logprob: float, _: int, text: str) -> dict[str, Any]:
    return {"token": text, "bytes": list(text.encode()), "logprob": logprob, "top_logprobs": []}


def _ending(generation: Generation) -> dict[str, Any]:
    finish = generation.finish or {}
    return {"finish_reason": finish.get("type"), "matched_stop": finish.get("matched")}


def _whole(
    kind: str, body: Mapping[str, Any], generations: Sequence[Generation], choices: list[dict[str, Any]], *, num_prompts: int
) -> dict[str, Any]:
    each = len(generations) // num_prompts
    num_prompt_tokens = sum(len(generation.request.input_ids) for generation in generations[::each])
    num_answer_tokens = sum(len(generation.output_ids) for generation in generations)
    spans = generations[0].version_spans()
    return {
        "id": generations[0].request.rid,
        "object": kind,
        "created": int(time.time()),
        "model": body.get("model") or "default",
        "choices": choices,
        "usage": {
            "prompt_tokens": num_prompt_tokens,
            "total_tokens": num_prompt_tokens + num_answer_tokens,
            "completion_tokens": num_answer_tokens,
            "prompt_tokens_details": None,
            "reasoning_tokens": 0,
        },
        "metadata": {"weight_version": spans[-1]["version"], "weight_versions": spans},
    }
