"""From requests to the objects of ``/generate``, and back from its answers."""

from collections.abc import Mapping
from typing import Any

from miles.engines.wire import Answer, FinishReason, GenerateRequest
from miles.types import VersionSpan

UNVERSIONED = "default"  # what servers call weights that nobody versioned: version 0


def wire_request(request: GenerateRequest, version: int) -> dict[str, Any]:
    """The body of a ``/generate`` for one request, asked while ``version`` is published."""
    return {
        "rid": wire_rid(request.rid),
        "input_ids": list(request.input_ids),
        "sampling_params": request.sampling.to_wire(),
        "return_logprob": True,
        "extra_key": cache_key(version),
    }


def wire_rid(rid: str) -> str:
    """The id on the wire; none is the beginning of another.

    SGLang aborts every request whose id begins with the one given, so aborting ``7-1`` would end ``7-10`` as well.
    """
    return f"{len(rid)}:{rid}"


def cache_key(version: int) -> str:
    """Requests of different published versions share no cached prefix, also where a pause kept the cache from being flushed."""
    return f"weights-{version}"


def adapter_field(adapter: str) -> dict[str, str]:
    """What asks for a LoRA adapter; nothing where there is none."""
    return {"lora_path": adapter} if adapter else {}


def parse_version(version: str) -> int:
    """A weight version as a number.

    Raises:
        ValueError: it is no number.
    """
    return 0 if version == UNVERSIONED else int(version)


def parse_answer(rid: str, answer: Mapping[str, Any]) -> Answer:
    """One object of a ``/generate`` answer that was asked for log-probabilities.

    Raises:
        KeyError, TypeError, ValueError: it does not have SGLang's shape, or its version spans leave a token out.
    """
    meta = answer["meta_info"]
    entries = meta.get("output_token_logprobs") or []
    spans = tuple(
        VersionSpan(parse_version(span["version"]), span["start"], span["end"])
        for span in meta["weight_versions"]
        if span["end"] > span["start"]
    )
    ends = [0, *(span.end for span in spans)]
    if [*(span.start for span in spans), len(entries)] != ends:
        raise ValueError(f"version spans {meta['weight_versions']} do not cover {len(entries)} tokens")
    kind: FinishReason = meta["finish_reason"]["type"]
    if kind not in ("stop", "length", "abort"):
        raise ValueError(f"finish_reason {meta['finish_reason']} is of no known type")
    return Answer(
        rid=rid,
        output_ids=tuple(entry[1] for entry in entries),
        logprobs=tuple(entry[0] for entry in entries),
        finish_reason=kind,
        versions=spans,
        text=answer.get("text") or "",
    )
