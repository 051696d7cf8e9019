"""What is asked of the engine (``Sampling``, ``Request``) and how far it got (``Generation``).

A ``Request`` never changes. Its ``Generation`` is owned by the scheduler until it is finished, then by the HTTP side.
"""

from dataclasses import dataclass, field
from typing import Any

FinishDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters after validation.

    top_k: number of tokens kept; 0 keeps all, 1 is greedy.
    max_new_tokens: fits into the context; ``is_length_given`` says whether the sender named it.
    """

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    is_length_given: bool = True
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.top_k == 1


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to sample."""

    rid: str
    input_ids: tuple[int, ...]
    sampling: Sampling
    return_logprob: bool = False
    return_text_in_logprobs: bool = False


@dataclass(slots=True, eq=False)
class Generation:
    """A request on its way: what was sampled so far, and under which weights.

    past_versions: (version, number of output tokens when that version was replaced), oldest first.
    finish: SGLang's ``finish_reason`` object once it is finished.
    error: the words of a failure inside the engine; then there is no answer.
    """

    request: Request
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    past_versions: list[tuple[str, int]] = field(default_factory=list)
    final_version: str = ""
    num_retractions: int = 0
    finish: FinishDict | None = None
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer so far."""
        return len(self.request.input_ids) + len(self.output_ids)

    def append(self, token: int, logprob: float) -> None:
        """Add one sampled token with its log-probability."""
        self.output_ids.append(token)
        self.logprobs.append(logprob)

    def note_weights_replaced(self, old_version: str) -> None:
        """Tokens so far were sampled under ``old_version``; what comes next is not."""
        if self.output_ids:
            self.past_versions.append((old_version, len(self.output_ids)))

    def version_spans(self) -> list[dict[str, Any]]:
        """Spans ``{version, start, end}`` that cover the answer in order; one empty span where nothing was sampled."""
        spans: list[dict[str, Any]] = []
        for version, end in [*self.past_versions, (self.final_version, len(self.output_ids))]:
            start = spans[-1]["end"] if spans else 0
            if spans and end <= start:
                continue
            if spans and spans[-1]["version"] == version:
                spans[-1]["end"] = end
            else:
                spans.append({"version": version, "start": start, "end": end})
        return spans
