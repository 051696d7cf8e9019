"""The words of SGLang's native HTTP API that miles uses, as types."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from miles.types import VersionSpan

PauseMode = Literal["abort", "retract", "in_place"]
FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request; ``temperature`` 0 is greedy, ``top_k`` -1 keeps all."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    sampling_seed: int | None = None

    def to_wire(self) -> dict[str, Any]:
        """The ``sampling_params`` object of ``/generate``."""
        wire: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "ignore_eos": self.ignore_eos,
        }
        if self.stop:
            wire["stop"] = list(self.stop)
        if self.stop_token_ids:
            wire["stop_token_ids"] = list(self.stop_token_ids)
        if self.sampling_seed is not None:
            wire["sampling_seed"] = self.sampling_seed
        return wire


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One answer to sample: ``rid`` names it for aborts."""

    rid: str
    input_ids: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine sampled: one log-prob per token, version spans as the server reports them."""

    rid: str
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    versions: tuple[VersionSpan, ...]
    text: str = ""


class EngineApi(Protocol):
    """What rollout code may ask of the engines."""

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        """Answers in the order of the requests; all go to one engine as one HTTP request.

        Cancelling the call ends its requests at the engine.

        Raises:
            EngineError: the engine refused or failed; carries its own words.
        """
        ...

    async def abort(self, rids: Sequence[str]) -> None:
        """End requests now; their ``generate`` returns what was sampled, finish reason ``abort``."""
        ...
