"""The words of SGLang's native HTTP API that miles uses, as types."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from miles.types import VersionSpan

if TYPE_CHECKING:
    from miles.engines.openai import OpenAiEndpoint

T = TypeVar("T")

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
    """One answer to sample.

    rid: names it for aborts.
    group: those of one group share a prompt, and a router may keep them together.
    """

    rid: str
    input_ids: tuple[int, ...]
    sampling: SamplingParams
    group: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine sampled: one log-prob per token, version spans as the server reports them.

    loss_mask: where a generate function puts tokens in that the engine did not sample, 0 for those; None where all were.
    """

    rid: str
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    versions: tuple[VersionSpan, ...]
    text: str = ""
    loss_mask: tuple[int, ...] | None = None


class Room(Protocol):
    """Whether engines are full."""

    @property
    def has_room(self) -> bool:
        """Whether nobody waits for an engine to have room."""
        ...

    def on_room(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever ``has_room`` may have become true."""
        ...


class EngineApi(Room, Protocol):
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

    async def through_openai(self, ask: "Callable[[OpenAiEndpoint], Awaitable[T]]") -> T:
        """What ``ask`` returns when it is given an engine's OpenAI-style endpoint; called again if that engine is lost meanwhile.

        It counts as one sample in flight at the engine until it returns.
        """
        ...
