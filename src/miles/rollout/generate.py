"""Single-turn generation: one prompt in, its group of scored samples out.

    Prompt ──requests (rid, seed)──► engine ──Answer × n──► Sample × n ──rewards──► Group

Each sample has a seed of its own that depends on the run's seed and the sample's place alone, so that an answer does not
depend on when, where or beside what it was sampled. Whatever ends a group early cancels its calls, which ends its requests
at the engine. ``interrupt`` ends what is in flight without losing it: the calls return with the tokens so far, not scored, and a
later call goes on with them under seeds of its own.
"""

import asyncio
import hashlib
import itertools
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from miles.engines.wire import Answer, EngineApi, FinishReason, GenerateRequest, SamplingParams
from miles.errors import EngineError, RolloutError
from miles.failures import concurrently
from miles.rollout.partial import is_whole, joined
from miles.rollout.prompt_lines import Tokenizer
from miles.rollout.rewards import Rewards
from miles.types import Group, Prompt, Sample, SampleStatus

STATUS_OF: Final[dict[FinishReason, SampleStatus]] = {
    "stop": SampleStatus.COMPLETED,
    "length": SampleStatus.TRUNCATED,
    "abort": SampleStatus.ABORTED,
}

GenerateFn = Callable[[EngineApi, Prompt, SamplingParams, str], Coroutine[Any, Any, Answer]]
"""Your generate function: ``async (engine, prompt, sampling, rid) -> Answer``.

It samples one answer with ``sampling`` (which carries this sample's seed); the answer is named ``rid``, and its ids,
log-probs and spans cover the response alone. Tokens that it puts in itself have loss mask 0. It is cancelled with its group.
"""


@dataclass(frozen=True, slots=True)
class GenerateSettings:
    """How groups are sampled.

    sampling: ``max_new_tokens`` is the longest answer wanted; what the context leaves may be less.
    seed, purpose: with the sample's place they give its seed; rids begin with ``purpose``.
    timeout_seconds: for sampling a whole group; scoring has a limit of its own (``reward_timeout_seconds``).
    """

    sampling: SamplingParams
    num_samples: int
    max_context_len: int
    timeout_seconds: float
    seed: int
    purpose: str = "train"
    granularity: Literal["group", "sample"] = "group"


class SingleTurnGroupGenerator:
    """Samples and scores groups; training and evaluation each have their own, with their own settings."""

    def __init__(
        self,
        engine: EngineApi,
        tokenizer: Tokenizer,
        rewards: Rewards,
        settings: GenerateSettings,
        generate: GenerateFn | None = None,
    ) -> None:
        self._engine, self._tokenizer, self._rewards, self._settings = engine, tokenizer, rewards, settings
        self._generate = generate
        self._name = f"{settings.purpose}-{uuid.uuid4().hex[:8]}"
        self._attempts = itertools.count()
        self._asked: set[str] = set()
        self._scoring: set[asyncio.Task[tuple[Sample, ...]]] = set()

    async def __call__(self, prompt: Prompt, version_admitted: int, begun: Group | None = None) -> Group:
        """The scored group; not scored if the engine aborted one of its samples, or if it was interrupted.

        begun: what was sampled of the group before; its samples that have not ended are gone on with.

        Raises:
            EngineError: an engine failed, or its answer does not hold together.
            TimeoutError: sampling took longer than the limit.
        """
        earlier = dict(enumerate(begun.samples)) if begun else {}
        requests = self._requests(prompt, earlier)
        answers = await self._ask_in_time(prompt, list(requests.values()))
        sampled = {
            place: self._sample(prompt, place, request, answer, earlier.get(place))
            for (place, request), answer in zip(requests.items(), answers, strict=True)
        }
        samples = [(earlier | sampled)[place] for place in range(self._settings.num_samples)]
        if not all(map(is_whole, samples)):
            return Group(prompt, tuple(samples), version_admitted)
        return Group(prompt, await self._scored(prompt, samples), version_admitted)

    async def interrupt(self) -> None:
        """End what is in flight: each call returns with what was sampled; samples that wait for their reward stay without."""
        for scoring in self._scoring:
            scoring.cancel()
        await self._engine.abort(list(self._asked))

    async def _scored(self, prompt: Prompt, samples: Sequence[Sample]) -> tuple[Sample, ...]:
        scoring = asyncio.ensure_future(self._rewards.score(prompt, samples))
        self._scoring.add(scoring)
        try:
            await asyncio.wait([scoring])
        finally:
            self._scoring.discard(scoring)
            if not scoring.done():
                await end(scoring)
        return tuple(samples) if scoring.cancelled() else scoring.result()

    def _requests(self, prompt: Prompt, earlier: Mapping[int, Sample]) -> dict[int, GenerateRequest]:
        """By place, for the samples that have not ended."""
        room = self._settings.max_context_len - len(prompt.token_ids)
        if room < 1:
            raise RolloutError(
                f"prompt {prompt.index} (row {prompt.row}) has {len(prompt.token_ids)} tokens and leaves no room for an answer "
                f"in a context of {self._settings.max_context_len}. Raise --rollout-max-context-len or remove the prompt"
            )
        sampling = replace(self._settings.sampling, max_new_tokens=min(self._settings.sampling.max_new_tokens, room))
        group = f"{self._name}-{next(self._attempts)}-{prompt.index}"
        wanted = [place for place in range(self._settings.num_samples) if place not in earlier or not is_whole(earlier[place])]
        return {place: self._request(prompt, place, sampling, group, earlier.get(place)) for place in wanted}

    def _request(
        self, prompt: Prompt, place: int, sampling: SamplingParams, group: str, earlier: Sample | None
    ) -> GenerateRequest:
        so_far = earlier.response_ids if earlier else ()
        seed = sample_seed(self._settings.seed, self._settings.purpose, prompt.index, place, len(so_far))
        rest = replace(sampling, max_new_tokens=max(sampling.max_new_tokens - len(so_far), 1), sampling_seed=seed)
        return GenerateRequest(f"{group}-{place}", (*prompt.token_ids, *so_far), rest, group)

    async def _ask_in_time(self, prompt: Prompt, requests: Sequence[GenerateRequest]) -> list[Answer]:
        limit, rids = self._settings.timeout_seconds, [request.rid for request in requests]
        self._asked.update(rids)
        try:
            async with asyncio.timeout(limit):
                return await self._ask(prompt, requests)
        except TimeoutError as error:
            raise TimeoutError(f"group {prompt.index} took longer than {limit:g} s (--rollout-timeout-seconds)") from error
        finally:
            self._asked.difference_update(rids)

    async def _ask(self, prompt: Prompt, requests: Sequence[GenerateRequest]) -> list[Answer]:
        generate = self._generate
        if not requests:
            return []
        if generate is not None:
            return await concurrently([generate(self._engine, prompt, request.sampling, request.rid) for request in requests])
        if self._settings.granularity == "group":
            return await self._engine.generate(requests)
        single = await concurrently([self._engine.generate([request]) for request in requests])
        return [answer for answers in single for answer in answers]

    def _sample(self, prompt: Prompt, place: int, request: GenerateRequest, answer: Answer, earlier: Sample | None) -> Sample:
        check_answer(request, answer)
        if earlier is None:
            return self._later(prompt, place, answer, self._text(request, answer, answer.output_ids))
        whole = joined(earlier, self._later(prompt, place, answer, ""))
        return replace(whole, text=self._text(request, answer, whole.response_ids))

    def _later(self, prompt: Prompt, place: int, answer: Answer, text: str) -> Sample:
        return Sample(
            group_index=prompt.index,
            sample_index=place,
            prompt_ids=prompt.token_ids,
            response_ids=answer.output_ids,
            logprobs=answer.logprobs,
            loss_mask=(1,) * len(answer.output_ids) if answer.loss_mask is None else answer.loss_mask,
            versions=answer.versions,
            status=STATUS_OF[answer.finish_reason],
            text=text,
        )

    def _text(self, request: GenerateRequest, answer: Answer, token_ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        ends_at_stop = answer.finish_reason == "stop" and answer.loss_mask is None
        return before_stop(text, request.sampling.stop) if ends_at_stop else text


def sample_seed(seed: int, purpose: str, group_index: int, sample_index: int, start: int = 0) -> int:
    """A seed of 31 bits that depends on nothing else; the same on every machine. start: tokens that were sampled before."""
    place = f"{seed}/{purpose}/{group_index}/{sample_index}{f'/{start}' if start else ''}".encode()
    return int.from_bytes(hashlib.blake2b(place, digest_size=4).digest(), "big") & 0x7FFF_FFFF


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait until it is over."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def before_stop(text: str, stops: Sequence[str]) -> str:
    """The text up to the first stop string."""
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


def check_answer(request: GenerateRequest, answer: Answer) -> None:
    """Refuse an answer whose parts do not fit together.

    Raises:
        EngineError: names the request and what does not fit.
    """
    length, end = len(answer.output_ids), 0
    if answer.rid != request.rid:
        raise EngineError(f"request {request.rid} got the answer of {answer.rid!r}")
    if len(answer.logprobs) != length:
        raise EngineError(f"request {request.rid}: {length} tokens but {len(answer.logprobs)} log-probs")
    if answer.loss_mask is not None and len(answer.loss_mask) != length:
        raise EngineError(f"request {request.rid}: {length} tokens but {len(answer.loss_mask)} loss-mask entries")
    for span in answer.versions:
        if span.start != end or span.end <= span.start:
            break
        end = span.end
    if end != length:
        raise EngineError(f"request {request.rid}: versions {list(answer.versions)} do not cover {length} tokens without gaps")
