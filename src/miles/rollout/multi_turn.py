"""Answers of several turns: the model speaks, your environment replies, the model goes on, all in one sample.

    prompt │ turn 1 ■■■■ │ reply ▫▫▫ │ turn 2 ■■■ │ reply ▫▫ │ turn 3 ■■■■■        ■ sampled: trained on   ▫ not

What the environment says has loss mask 0 and log-prob 0; each turn's request carries everything before it, so that the engine
samples exactly the text that is trained on. ``max_new_tokens`` bounds turns and replies together. The text of the sample is all
of it, without special tokens; a reward of yours finds the turns by what stands between them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from miles.engines.wire import Answer, EngineApi, FinishReason, GenerateRequest, SamplingParams
from miles.errors import DataError, RolloutError
from miles.rollout.generate import before_stop
from miles.rollout.prompt_lines import Tokenizer, chat_reply, ids_of
from miles.types import Prompt, VersionSpan

SEED_STEP = 0x9E3779B1  # odd and large: seeds of turns lie far apart, and the first is that of the sample
LARGEST_SEED = 0x7FFF_FFFF
Reply = str | Mapping[str, str]
Environment = Callable[[Prompt, tuple[str, ...]], Awaitable[Reply | None]]
"""Yours: ``async (prompt, turns) -> reply``, ``turns`` being what the model said so far without special tokens and stop strings;
None ends the answer.

With ``--apply-chat-template`` a reply is the content of a message of the user, or a whole message (``{"role": "tool",
"content": …}``); without, the text that follows as it is.
"""


@dataclass(slots=True)
class Turns:
    """One answer as it grows."""

    prompt: Prompt
    sampling: SamplingParams
    rid: str
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    num_turns: int = 0

    @property
    def room(self) -> int:
        """Tokens that are left for turns and replies."""
        return self.sampling.max_new_tokens - len(self.ids)

    async def sample(self, engine: EngineApi) -> Answer:
        """Let the model speak: what is there so far is its input, and a turn has a seed of its own.

        Raises:
            EngineError: as the engine's ``generate``.
        """
        seed = self.sampling.sampling_seed
        own = None if seed is None else (seed + self.num_turns * SEED_STEP) & LARGEST_SEED
        sampling = replace(self.sampling, max_new_tokens=self.room, sampling_seed=own)
        rid = f"{self.rid}-turn{self.num_turns}" if self.num_turns else self.rid
        (answer,) = await engine.generate([GenerateRequest(rid, (*self.prompt.token_ids, *self.ids), sampling)])
        self._append(answer.output_ids, answer.logprobs, 1)
        start = len(self.ids) - len(answer.output_ids)
        for span in answer.versions:
            self._cover(span.version, start + span.start, start + span.end)
        self.finish_reason, self.num_turns = answer.finish_reason, self.num_turns + 1
        return answer

    def insert(self, token_ids: Sequence[int]) -> bool:
        """Add a reply; False, and nothing is added, where it leaves no room for another turn: the answer is cut."""
        if len(token_ids) >= self.room:
            self.finish_reason = "length"
            return False
        self._append(token_ids, [0.0] * len(token_ids), 0)
        self._cover(self.versions[-1].version, len(self.ids) - len(token_ids), len(self.ids))
        return True

    def answer(self) -> Answer:
        """The whole answer under its name."""
        return Answer(
            self.rid, tuple(self.ids), tuple(self.logprobs), self.finish_reason, tuple(self.versions), loss_mask=tuple(self.mask)
        )

    def _append(self, token_ids: Sequence[int], logprobs: Sequence[float], trained: int) -> None:
        self.ids += token_ids
        self.logprobs += logprobs
        self.mask += [trained] * len(token_ids)

    def _cover(self, version: int, start: int, end: int) -> None:
        if start == end:
            return
        if self.versions and self.versions[-1].version == version:
            start = self.versions.pop().start
        self.versions.append(VersionSpan(version, start, end))


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """The generate function of runs with an environment.

    max_turns: of the model; the environment is not asked after the last.
    """

    environment: Environment
    tokenizer: Tokenizer
    max_turns: int
    applies_template: bool

    async def __call__(self, engine: EngineApi, prompt: Prompt, sampling: SamplingParams, rid: str) -> Answer:
        """One answer, until the environment ends it, a limit does, or it is aborted.

        Raises:
            RolloutError: the environment returned what is no reply.
        """
        turns, said = Turns(prompt, sampling, rid), list[str]()
        while True:
            part = await turns.sample(engine)
            text = self.tokenizer.decode(list(part.output_ids), skip_special_tokens=True)
            said.append(before_stop(text, sampling.stop) if part.finish_reason == "stop" else text)
            if part.finish_reason != "stop" or len(said) == self.max_turns or not part.output_ids:
                return turns.answer()
            reply = await self.environment(prompt, tuple(said))
            if reply is None or not turns.insert(self._tokens(reply, prompt, part.output_ids)):
                return turns.answer()

    def _tokens(self, reply: Any, prompt: Prompt, turn: Sequence[int]) -> tuple[int, ...]:
        message = {"role": "user", "content": reply} if isinstance(reply, str) else reply
        fits = isinstance(message, Mapping) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
        if not fits or (not self.applies_template and not isinstance(reply, str)):
            wanted = "a string, a message or None" if self.applies_template else "a string or None (no chat template is applied)"
            raise RolloutError(
                f"the environment returned {str(reply)[:80]!r} for prompt {prompt.index}. Return {wanted} (--environment-path)"
            )
        if not self.applies_template:
            return ids_of(str(reply), self.tokenizer)
        try:
            tokens = ids_of(chat_reply(dict(message), self.tokenizer), self.tokenizer)
        except DataError as error:
            raise RolloutError(f"the reply of the environment to prompt {prompt.index}: {error} (--environment-path)") from error
        return tokens[overlap(turn, tokens) :]


def overlap(turn: Sequence[int], following: Sequence[int]) -> int:
    """How many of the tokens that follow the turn's words it has said itself: the end of a turn that ended by itself."""
    sizes = range(min(len(turn), len(following)), 0, -1)
    return next((size for size in sizes if tuple(turn[-size:]) == tuple(following[:size])), 0)
