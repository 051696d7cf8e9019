"""From the bodies of ``/v1/chat/completions`` and ``/v1/completions`` to what ``/generate`` would be asked.

Served is what a rollout needs; everything else that SGLang knows is accepted with the value that asks for nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from miles.engines.embedded.parse import BadRequestError, Limits, parse_generate, refuse_fields
from miles.engines.embedded.request import Request

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
DEFAULT_COMPLETION_TOKENS = 16  # of /v1/completions; a chat goes on as long as the context has room
SAMPLING = (
    "temperature", "top_p", "top_k", "stop", "stop_token_ids", "ignore_eos", "no_stop_trim", "skip_special_tokens",
)  # fmt: skip
SHARED = (*SAMPLING, "model", "n", "seed", "max_tokens", "logprobs", "rid", "extra_key", "user", "return_token_ids", "lora_path")
CHAT_FIELDS = (*SHARED, "messages", "input_ids", "max_completion_tokens", "return_prompt_token_ids", "return_meta_info")
COMPLETION_FIELDS = (*SHARED, "prompt")
NEUTRAL_SHARED: Mapping[str, tuple[Any, ...]] = {
    "stream": (None, False),
    "stream_options": (None,),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "response_format": (None, {"type": "text"}),
    "regex": (None,),
    "ebnf": (None,),
    "stop_regex": (None,),
    "session_params": (None,),
    "custom_logit_processor": (None,),
    "custom_params": (None, {}),
    "priority": (None,),
    "cache_salt": (None,),
    "return_hidden_states": (None, False),
    "return_routed_experts": (None, False),
    "return_cached_tokens_details": (None, False),
}
NEUTRAL_CHAT: Mapping[str, tuple[Any, ...]] = {
    **NEUTRAL_SHARED,
    "top_logprobs": (None, 0),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True),
    "continue_final_message": (None, False),
    "separate_reasoning": (None, True, False),
    "stream_reasoning": (None, True, False),
    "reasoning_effort": (None,),
    "chat_template_kwargs": (None, {}),
}
NEUTRAL_COMPLETION: Mapping[str, tuple[Any, ...]] = {
    **NEUTRAL_SHARED,
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "json_schema": (None,),
}
Messages = list[dict[str, Any]]
Template = Callable[[Messages], list[int]]
"""Messages to token ids, as the model's chat template has them, up to where the answer begins."""


def parse_chat(body: Any, limits: Limits, template: Template) -> list[Request]:
    """The ``n`` requests of a chat completion.

    Raises:
        BadRequestError: with a sentence for the sender.
    """
    refuse_fields(_object(body, CHAT), CHAT_FIELDS, NEUTRAL_CHAT, CHAT)
    messages, ids = body.get("messages"), body.get("input_ids")
    if not isinstance(messages, list) or not messages or not all(_is_message(message) for message in messages):
        raise BadRequestError("messages must be a list of objects with the texts role and content, and not empty.")
    if ids is None:
        try:
            ids = template(messages)
        except Exception as error:  # a template may raise whatever it likes about messages
            raise BadRequestError(f"the model's chat template does not take these messages: {error}") from error
    length = body.get("max_completion_tokens") or body.get("max_tokens")
    return _requests(body, [ids], length, wants_logprobs=bool(body.get("logprobs")), limits=limits)


def parse_completion(body: Any, limits: Limits) -> list[Request]:
    """The requests of a completion: ``n`` for every prompt.

    Raises:
        BadRequestError: with a sentence for the sender.
    """
    refuse_fields(_object(body, COMPLETIONS), COMPLETION_FIELDS, NEUTRAL_COMPLETION, COMPLETIONS)
    if body.get("logprobs") not in (None, 0, 1):
        raise BadRequestError(
            f"logprobs = {body['logprobs']!r}: the embedded engine gives those of the sampled tokens alone. Give 1."
        )
    prompt = body.get("prompt")
    prompts = [prompt] if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and type(prompt[0]) is int) else prompt
    if not isinstance(prompts, list) or not prompts:
        raise BadRequestError("prompt must be a text, a list of token ids, or a list of either, and not empty.")
    ids = [limits.encode(one) if isinstance(one, str) else one for one in prompts]
    length = body.get("max_tokens", DEFAULT_COMPLETION_TOKENS)
    return _requests(body, ids, length, wants_logprobs=body.get("logprobs") is not None, limits=limits)


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(name), str) for name in ("role", "content"))


def _object(body: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise BadRequestError(f"The body of {where} must be a JSON object.")
    return body


def _requests(body: Mapping[str, Any], prompts: list[Any], length: Any, *, wants_logprobs: bool, limits: Limits) -> list[Request]:
    count = body.get("n", 1)
    if type(count) is not int or count < 1:
        raise BadRequestError(f"n = {count!r} must be a whole number of at least 1.")
    params = {name: body[name] for name in SAMPLING if body.get(name) is not None}
    asked = {
        "input_ids": [ids for ids in prompts for _ in range(count)],
        "sampling_params": params | {"max_new_tokens": length, "sampling_seed": body.get("seed")},
        "return_logprob": wants_logprobs,
        "return_text_in_logprobs": True,
    }
    if body.get("lora_path") is not None:
        asked["lora_path"] = body["lora_path"]
    rid = body.get("rid")
    if rid is not None:
        asked["rid"] = [rid] if count * len(prompts) == 1 else rid
    return parse_generate(asked, limits)[0]
