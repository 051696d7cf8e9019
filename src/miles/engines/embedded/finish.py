"""When an answer is finished, in SGLang's order: stop string, stop or end token, length."""

from collections.abc import Callable

from miles.engines.embedded.request import FinishDict, Generation

Decode = Callable[[list[int]], str]


def finish_of(generation: Generation, end_ids: frozenset[int], decode: Decode) -> FinishDict | None:
    """SGLang's ``finish_reason`` if the last token ended the answer, else None.

    Args:
        generation: has at least one output token; earlier tokens did not end it.
        end_ids: the model's end-of-text tokens.
        decode: token ids to text, special tokens included.
    """
    sampling = generation.request.sampling
    if sampling.stop and (matched := _stop_string(generation, decode)) is not None:
        return {"type": "stop", "matched": matched}
    token = generation.output_ids[-1]
    if not sampling.ignore_eos and (token in end_ids or token in sampling.stop_token_ids):
        return {"type": "stop", "matched": token}
    if len(generation.output_ids) >= sampling.max_new_tokens:
        return length_finish(sampling.max_new_tokens)
    return None


def _stop_string(generation: Generation, decode: Decode) -> str | None:
    """The first stop string that the newest token completed, looking only at as many tokens as it can span.

    A token decodes to at least a part of one character, at most four of which make one: a stop string of n characters
    lies within the last 4 n tokens, plus a few whose text depends on their neighbours.
    """
    stops = generation.request.sampling.stop
    window = 4 * max(len(stop) for stop in stops) + 4
    tail = decode(generation.output_ids[-window:])
    return next((stop for stop in stops if stop in tail), None)


def length_finish(length: int) -> FinishDict:
    """The answer reached ``max_new_tokens``."""
    return {"type": "length", "length": length}


def abort_finish(*, was_running: bool) -> FinishDict:
    """The answer was aborted; SGLang words the two cases differently."""
    if was_running:
        return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    return {"type": "abort", "message": "Abort in waiting queue"}
