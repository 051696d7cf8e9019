"""Stand-ins for what surrounds the rollout part: configuration, tokenizer, prompts, generators, engines."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from miles.config.commands import TrainAsyncConfig, TrainConfig
from miles.config.options.data import DataOptions
from miles.config.options.model import ModelOptions
from miles.config.options.reward import RewardOptions
from miles.config.options.rollout import FullyAsync, OneStepOff, SyncRollout
from miles.engines.wire import Answer, GenerateRequest
from miles.rollout.contracts import GroupGenerator, RolloutFnInput
from miles.rollout.ledger import Ledger
from miles.rollout.prompt_lines import PromptLine
from miles.rollout.prompts import PromptSource
from miles.simulation.virtual_time import VirtualClock
from miles.types import Group, Prompt, Sample, SampleStatus, VersionSpan
from tests.builders import derived

PRESET = Path(__file__).parents[2] / "src/miles/presets/reverse"


class LetterTokenizer:
    """One token per character; ``<bos>`` is token 1; ``§`` cannot be encoded."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, Any]:
        assert add_special_tokens is False
        if "§" in text:
            raise ValueError("no token for §")
        begin, rest = ([1], text[5:]) if text.startswith("<bos>") else ([], text)
        return {"input_ids": begin + [ord(letter) for letter in rest]}

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens is True
        return "".join(chr(token) for token in token_ids if token > 2)

    def apply_chat_template(self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool) -> str:
        assert tokenize is False
        assert add_generation_prompt is True
        if conversation[-1]["role"] == "alien":
            raise ValueError("unknown role")
        return "".join(f"[{message['role']}]{message['content']}" for message in conversation)


def prompt(index: int = 0, **changes: Any) -> Prompt:
    return replace(Prompt(index, index, 0, "ab", (97, 98), "ba"), **changes)


def sample(group_index: int = 0, sample_index: int = 0, **changes: Any) -> Sample:
    plain = Sample(
        group_index=group_index,
        sample_index=sample_index,
        prompt_ids=(97, 98),
        response_ids=(98, 97),
        logprobs=(-0.5, -0.25),
        loss_mask=(1, 1),
        versions=(VersionSpan(0, 0, 2),),
        status=SampleStatus.COMPLETED,
        text="ba",
        reward=1.0,
    )
    return replace(plain, **changes)


def group(index: int = 0, version: int = 0, rewards: Sequence[float | None] = (0.0, 1.0), **changes: Any) -> Group:
    samples = tuple(
        sample(index, place, reward=reward, versions=(VersionSpan(version, 0, 2),), **changes)
        for place, reward in enumerate(rewards)
    )
    return Group(prompt(index), samples, version)


def source(num_prompts: int = 7, seed: int | None = None) -> PromptSource:
    return PromptSource([PromptLine(row, f"p{row}", (97, row), f"l{row}") for row in range(num_prompts)], seed)


def config(
    rollout: SyncRollout | OneStepOff | FullyAsync, batch_size: int = 2, num_samples: int = 2, reward: RewardOptions | None = None
) -> TrainConfig | TrainAsyncConfig:
    command = TrainConfig if isinstance(rollout, SyncRollout) else TrainAsyncConfig
    data = DataOptions(
        prompt_data=PRESET / "prompts.jsonl", rollout_batch_size=batch_size, n_samples_per_prompt=num_samples, num_rollout=10
    )
    return command(
        model=ModelOptions(hf_checkpoint=PRESET / "model"),
        data=data,
        reward=reward or RewardOptions(rm_type="exact"),
        rollout=rollout,
    )


class CheckedLedger(Ledger):
    """Checks the identity at every transition."""

    def _enter(self, index: int, state: Any) -> None:
        super()._enter(index, state)
        if not self.restoring:
            self.verify()

    restoring = False

    def _fill_waiting(self, waiting: Sequence[int]) -> None:
        self.restoring = True
        super()._fill_waiting(waiting)
        self.restoring = False
        self.verify()

    def drop(self, index: int, reason: Any) -> None:
        super().drop(index, reason)
        self.verify()

    def mark_trained(self, rollout: Any) -> None:
        super().mark_trained(rollout)
        self.verify()


def given(
    generate: GroupGenerator,
    rollout: SyncRollout | OneStepOff | FullyAsync,
    *,
    batch_size: int = 2,
    num_samples: int = 2,
    num_rollout: int = 10,
    say: Callable[[str], None] = lambda line: None,
    **changes: Any,
) -> RolloutFnInput:
    plain = RolloutFnInput(
        config(rollout, batch_size, num_samples),
        derived(num_rollout=num_rollout),
        source(),
        CheckedLedger(),
        generate,
        VirtualClock(),
        say=say,
    )
    return replace(plain, **changes)


@dataclass
class SimulatedGenerator:
    """Groups that take random times; what becomes of a group depends on its index and the seed alone."""

    seed: int
    abort_share: float = 0.0
    versions_seen: dict[int, int] = field(default_factory=dict)
    running: int = 0
    most_running: int = 0

    async def __call__(self, asked: Prompt, version_admitted: int) -> Group:
        rng = random.Random(f"{self.seed}/{asked.index}")
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(rng.choice([rng.expovariate(1), rng.lognormvariate(0, 1.5), 0.01]))
        finally:
            self.running -= 1
        if rng.random() < self.abort_share:
            raise TimeoutError(f"group {asked.index} took too long")
        rewards = (0.0, float(asked.index % 3 != 1))
        return replace(group(asked.index, version_admitted, rewards), prompt=asked)


@dataclass
class SimulatedEngine:
    """Answers with the prompt reversed, after ``seconds``; remembers what it was asked."""

    seconds: float = 1.0
    finish_reason: str = "stop"
    ending: tuple[int, ...] = (2,)
    error: Exception | None = None
    calls: list[list[GenerateRequest]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        self.calls.append(list(requests))
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.aborted += [request.rid for request in requests]
            raise
        if self.error is not None:
            raise self.error
        return [self.answer(request) for request in requests]

    def answer(self, request: GenerateRequest) -> Answer:
        ids = tuple(reversed(request.input_ids)) + self.ending
        logprobs = tuple(-0.5 for _ in ids)
        return Answer(request.rid, ids, logprobs, self.finish_reason, (VersionSpan(3, 0, len(ids)),))

    async def abort(self, rids: Sequence[str]) -> None:
        self.aborted.extend(rids)

    has_room = True

    def on_room(self, listener: Callable[[], None]) -> None:
        """There is always room."""
