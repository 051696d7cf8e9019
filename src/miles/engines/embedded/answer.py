"""A finished generation as SGLang's ``/generate`` answers it."""

from typing import Any

from miles.engines.embedded.request import Generation


def answer_of(generation: Generation, tokenizer: Any) -> dict[str, Any]:
    """The JSON object of one answer: ``text``, ``output_ids``, ``meta_info``."""
    spans = generation.version_spans()
    meta_info: dict[str, Any] = {
        "id": generation.request.rid,
        "finish_reason": generation.finish,
        "prompt_tokens": len(generation.request.input_ids),
        "weight_version": spans[-1]["version"],
        "num_retractions": generation.num_retractions,
        "completion_tokens": len(generation.output_ids),
        "cached_tokens": 0,
        "weight_versions": spans,
    }
    if generation.request.return_logprob:
        meta_info |= _logprobs(generation, tokenizer)
    return {"text": _text(generation, tokenizer), "output_ids": generation.output_ids, "meta_info": meta_info}


def _logprobs(generation: Generation, tokenizer: Any) -> dict[str, Any]:
    texts: list[str | None] = [None] * len(generation.output_ids)
    if generation.request.return_text_in_logprobs:
        texts = [tokenizer.decode([token]) for token in generation.output_ids]
    entries = list(zip(generation.logprobs, generation.output_ids, texts, strict=True))
    return {"input_token_logprobs": [], "output_token_logprobs": entries, "output_token_logprobs_length": len(entries)}


def _text(generation: Generation, tokenizer: Any) -> str:
    """Decoded text; what stopped the answer is cut off unless the request wants it kept."""
    sampling = generation.request.sampling
    matched = None if sampling.no_stop_trim else (generation.finish or {}).get("matched")
    ids = generation.output_ids[:-1] if isinstance(matched, int) else generation.output_ids
    text: str = tokenizer.decode(ids, skip_special_tokens=sampling.skip_special_tokens)
    if isinstance((generation.finish or {}).get("matched"), str):
        stop: str = (generation.finish or {})["matched"]
        end = text.find(stop)
        if end >= 0:
            text = text[: end + (len(stop) if sampling.no_stop_trim else 0)]
    return text
