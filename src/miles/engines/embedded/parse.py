"""From a JSON body to requests, or a sentence that says what is wrong with it.

Fields that SGLang knows and this engine does not serve are accepted with their neutral value only; fields that nobody
knows are refused with the nearest name.
"""

import difflib
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from miles.engines.embedded.request import Request, Sampling

MAX_STOP_STRINGS = 32
DEFAULT_MAX_NEW_TOKENS = 128
GREEDY_BELOW = 1e-6  # temperatures below are greedy, as in SGLang
LARGEST_SEED = 2**63

# Served fields of /generate.
# ``extra_key`` keeps the cached prefixes of different callers apart; no prefix outlives its request here, so it changes nothing.
BODY_FIELDS = (
    "rid", "text", "input_ids", "sampling_params", "return_logprob", "return_text_in_logprobs", "extra_key", "lora_path",
)  # fmt: skip
# Known fields that are not served, with the values that ask for nothing.
NEUTRAL_BODY: Mapping[str, tuple[Any, ...]] = {
    "model": (None,),  # sglang's router sends it, and the next three, with every request
    "no_logs": (None, False),
    "return_bytes": (None, False),
    "return_entropy": (None, False),
    "stream": (None, False),
    "log_metrics": (None, True, False),
    "logprob_start_len": (None, -1),
    "top_logprobs_num": (None, 0),
    "token_ids_logprob": (None,),
    "return_hidden_states": (None, False),
    "return_routed_experts": (None, False),
    "return_sampling_mask": (None, False),
    "return_prompt_token_ids": (None, False),
    "image_data": (None,),
    "audio_data": (None,),
    "video_data": (None,),
    "input_embeds": (None,),
    "session_params": (None,),
    "custom_logit_processor": (None,),
    "priority": (None,),
    "background": (None, False),
}
NEUTRAL_SAMPLING: Mapping[str, tuple[Any, ...]] = {
    "min_p": (None, 0),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_new_tokens": (None, 0),
    "n": (None, 1),
    "beam_width": (None, 1),
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "structural_tag": (None,),
    "stop_regex": (None, []),
    "logit_bias": (None, {}),
    "custom_params": (None, {}),
    "stream_interval": (None, 1),
    "spaces_between_special_tokens": (None, True),
}


class BadRequestError(ValueError):
    """A request that cannot be served; the text is the whole answer to its sender."""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class SamplingBody(BaseModel):
    """The served fields of ``sampling_params``; null means the default, as in SGLang."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    max_new_tokens: int | None = Field(default=DEFAULT_MAX_NEW_TOKENS, ge=0)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1)
    stop: Annotated[list[str], BeforeValidator(_as_list), Field(max_length=MAX_STOP_STRINGS)] = Field(default_factory=list)
    stop_token_ids: list[int] = Field(default_factory=list)
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    sampling_seed: int | None = Field(default=None, ge=-LARGEST_SEED, lt=LARGEST_SEED)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the running engine can serve.

    encode: text to token ids.
    new_seed: a fresh random seed for requests that bring none.
    adapters: names of the LoRA adapters that requests may ask for now.
    """

    context_len: int
    vocab_size: int
    encode: Callable[[str], list[int]]
    new_seed: Callable[[], int]
    adapters: Callable[[], Collection[str]] = tuple


def parse_generate(body: Any, limits: Limits) -> tuple[list[Request], bool]:
    """The requests of a ``/generate`` body, and whether it was a batch (answered by a list).

    Raises:
        BadRequestError: with a sentence for the sender.
    """
    if not isinstance(body, dict):
        raise BadRequestError("The body of /generate must be a JSON object.")
    refuse_fields(body, BODY_FIELDS, NEUTRAL_BODY, "/generate")
    refuse_unknown_adapters(body, limits)
    prompts, is_batch = _prompts(body, limits)
    count = len(prompts)
    requests = [
        Request(rid=rid, input_ids=tuple(ids), sampling=sampling, return_logprob=logprob, return_text_in_logprobs=text)
        for rid, ids, sampling, logprob, text in zip(
            _rids(body.get("rid"), count, is_batch=is_batch),
            prompts,
            _samplings(body.get("sampling_params"), count, limits),
            _flags(body, "return_logprob", count),
            _flags(body, "return_text_in_logprobs", count),
            strict=True,
        )
    ]
    return [_checked(request, limits) for request in requests], is_batch


def refuse_fields(body: Mapping[str, Any], served: tuple[str, ...], neutral: Mapping[str, tuple[Any, ...]], where: str) -> None:
    """Refuse unknown fields, and known ones that ask for something this engine does not do."""
    for name, value in body.items():
        if name in served:
            continue
        if name not in neutral:
            near = difflib.get_close_matches(name, [*served, *neutral], n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known fields: {', '.join(served)}."
            raise BadRequestError(f"{where} has no field {name!r}.{hint}")
        if not any(value == accepted for accepted in neutral[name]):
            raise BadRequestError(
                f"{name} = {value!r} in {where} is not served by the embedded engine. "
                "Leave the field out or use the sglang engine."
            )


def refuse_unknown_adapters(body: Mapping[str, Any], limits: Limits) -> None:
    """Refuse a request for an adapter that is not loaded; where one is, it counts for all requests."""
    asked = body.get("lora_path")
    for name in asked if isinstance(asked, list) else [asked]:
        if name is not None and name not in limits.adapters():
            raise BadRequestError(f"lora_path = {name!r}: no such LoRA adapter is loaded.")


def _prompts(body: Mapping[str, Any], limits: Limits) -> tuple[list[list[int]], bool]:
    text, input_ids = body.get("text"), body.get("input_ids")
    if (text is None) == (input_ids is None):
        raise BadRequestError("Give either text or input_ids, not both and not neither.")
    if text is not None:
        texts = text if isinstance(text, list) else [text]
        if not texts or not all(isinstance(item, str) for item in texts):
            raise BadRequestError("text must be a string or a list of strings, and not empty.")
        return [limits.encode(item) for item in texts], isinstance(text, list)
    if not isinstance(input_ids, list) or not input_ids:
        raise BadRequestError("input_ids must be a list of token ids or a list of such lists, and not empty.")
    is_batch = isinstance(input_ids[0], list)
    prompts = input_ids if is_batch else [input_ids]
    for prompt in prompts:
        if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
            raise BadRequestError("input_ids must be a list of token ids or a list of such lists; found something else in it.")
    return prompts, is_batch


def _rids(rid: Any, count: int, *, is_batch: bool) -> list[str]:
    if rid is None:
        return [uuid.uuid4().hex for _ in range(count)]
    if isinstance(rid, str):
        return [f"{rid}_{i}" for i in range(count)] if is_batch else [rid]
    if not isinstance(rid, list) or not all(isinstance(item, str) for item in rid):
        raise BadRequestError(f"rid must be a string or a list of strings, got {rid!r}.")
    if len(rid) != count:
        raise BadRequestError(f"rid has {len(rid)} entries for {count} prompts.")
    if len(set(rid)) != count:
        raise BadRequestError("rid names one request twice.")
    return rid


def _flags(body: Mapping[str, Any], name: str, count: int) -> list[bool]:
    value = body.get(name)
    flags = value if isinstance(value, list) else [bool(value) if value is None else value] * count
    if len(flags) != count or not all(isinstance(flag, bool) for flag in flags):
        raise BadRequestError(f"{name} must be true, false or one of them for each of the {count} prompts, got {value!r}.")
    return flags


def _samplings(params: Any, count: int, limits: Limits) -> list[Sampling]:
    if isinstance(params, list):
        if len(params) != count:
            raise BadRequestError(f"sampling_params has {len(params)} entries for {count} prompts.")
        return [_sampling(item, limits) for item in params]
    shared = _sampling({} if params is None else params, limits)
    if isinstance(params, dict) and params.get("sampling_seed") is not None:
        return [shared] * count
    return [shared, *(replace(shared, seed=limits.new_seed()) for _ in range(count - 1))]


def _sampling(params: Any, limits: Limits) -> Sampling:
    if not isinstance(params, dict):
        raise BadRequestError(f"sampling_params must be an object or a list of objects, got {params!r}.")
    refuse_fields(params, tuple(SamplingBody.model_fields), NEUTRAL_SAMPLING, "sampling_params")
    served = {name: value for name, value in params.items() if name in SamplingBody.model_fields}
    max_new_tokens = served.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    try:
        body = SamplingBody(**{name: value for name, value in served.items() if value is not None})
    except ValidationError as error:
        raise BadRequestError(" ".join(_sentence(problem) for problem in error.errors())) from error
    if body.top_k == 0:
        raise BadRequestError("sampling_params.top_k = 0: must be -1 (keep all) or at least 1.")
    is_greedy = body.temperature < GREEDY_BELOW
    return Sampling(
        max_new_tokens=limits.context_len if max_new_tokens is None else max_new_tokens,
        is_length_given=params.get("max_new_tokens") is not None,
        temperature=1.0 if is_greedy else body.temperature,
        top_p=body.top_p,
        top_k=1 if is_greedy else min(max(body.top_k, 0), limits.vocab_size),
        seed=limits.new_seed() if body.sampling_seed is None else body.sampling_seed,
        stop=tuple(body.stop),
        stop_token_ids=frozenset(body.stop_token_ids),
        ignore_eos=body.ignore_eos,
        no_stop_trim=body.no_stop_trim,
        skip_special_tokens=body.skip_special_tokens,
    )


def _sentence(problem: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    return f"sampling_params.{place} = {problem['input']!r}: {problem['msg']}."


def _checked(request: Request, limits: Limits) -> Request:
    """Refuse what does not fit the model or the context; an open-ended length is cut to what fits."""
    num_prompt = len(request.input_ids)
    if not num_prompt:
        raise BadRequestError(f"Request {request.rid}: the prompt is empty.")
    if min(request.input_ids) < 0 or max(request.input_ids) >= limits.vocab_size:
        wrong = next(token for token in request.input_ids if not 0 <= token < limits.vocab_size)
        raise BadRequestError(f"Request {request.rid}: token id {wrong} is outside the vocabulary of {limits.vocab_size}.")
    if any(not stop for stop in request.sampling.stop):
        raise BadRequestError(f"Request {request.rid}: an empty stop string would end every answer at once.")
    if num_prompt >= limits.context_len:
        raise BadRequestError(
            f"Request {request.rid}: the prompt has {num_prompt} tokens, the context holds {limits.context_len} with the answer."
        )
    room = limits.context_len - num_prompt
    sampling = request.sampling
    if sampling.max_new_tokens <= room:
        return request
    if sampling.is_length_given:
        raise BadRequestError(
            f"Request {request.rid}: {num_prompt} prompt tokens and max_new_tokens = {sampling.max_new_tokens} "
            f"exceed the context of {limits.context_len} tokens."
        )
    return replace(request, sampling=replace(sampling, max_new_tokens=room))
