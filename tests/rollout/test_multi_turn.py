"""Answers of several turns: what the model said is trained on, what the environment said is not, within the limit."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles.engines.wire import Answer, GenerateRequest, SamplingParams
from miles.errors import EngineError, RolloutError
from miles.rollout.generate import GenerateSettings, SingleTurnGroupGenerator, check_answer
from miles.rollout.multi_turn import MultiTurn
from miles.rollout.rewards import ExactReward
from miles.simulation.virtual_time import run_virtual
from miles.types import SampleStatus, VersionSpan

from .simulated import LetterTokenizer, SimulatedEngine, prompt

pytestmark = pytest.mark.unit
END = 2
TURNS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=6)


@dataclass
class Scripted(SimulatedEngine):
    """Says turn after turn so many letters under so many versions, and stops where it has room."""

    script: list[tuple[int, int]] = field(default_factory=list)

    def answer(self, request: GenerateRequest) -> Answer:
        length, version = self.script[len(self.calls) - 1]
        ids = (*(97 + place for place in range(length)), END)[: request.sampling.max_new_tokens]
        reason = "stop" if ids[-1:] == (END,) else "length"
        spans = (VersionSpan(version, 0, len(ids)),) if ids else ()
        return Answer(request.rid, ids, tuple(-float(len(self.calls)) for _ in ids), reason, spans)


def answered(
    engine: Any, replies: list[Any], limit: int = 64, max_turns: int = 9, seed: int | None = 7
) -> tuple[Answer, list[Any]]:
    seen: list[Any] = []

    async def respond(asked: Any, turns: tuple[str, ...]) -> Any:
        seen.append(turns)
        return replies[len(turns) - 1]

    speak = MultiTurn(respond, LetterTokenizer(), max_turns, applies_template=False)
    return run_virtual(speak(engine, prompt(), SamplingParams(limit, sampling_seed=seed), "r1")), seen


@given(TURNS, st.integers(1, 30), st.integers(1, 6))
def test_every_token_is_where_it_came_from(script: list[tuple[int, int, int]], limit: int, max_turns: int) -> None:
    engine = Scripted(script=[(length, version) for length, version, _ in script])
    replies = ["x" * length for _, _, length in script[:-1]] + [None]
    answer, _ = answered(engine, replies, limit, max_turns)
    check_answer(GenerateRequest("r1", (), SamplingParams(limit)), answer)
    assert len(answer.output_ids) <= limit
    said = [token for token, trained in zip(answer.output_ids, answer.loss_mask or (), strict=True) if trained]
    spoken = [token for number, (call,) in enumerate(engine.calls) for token in turn_of(engine, number, call)]
    assert said == spoken
    assert all((logprob == 0) == (not trained) for logprob, trained in zip(answer.logprobs, answer.loss_mask or (), strict=True))
    assert len(engine.calls) <= max_turns
    for call in engine.calls:  # each turn is asked with exactly what is trained on before it
        assert (*prompt().token_ids, *answer.output_ids)[: len(call[0].input_ids)] == call[0].input_ids
    assert sum(len(span) and span.end - span.start for span in answer.versions) == len(answer.output_ids)
    assert (answer.finish_reason == "length") == (limit_reached(engine, script, limit, max_turns))


def turn_of(engine: Scripted, number: int, call: GenerateRequest) -> tuple[int, ...]:
    return (*(97 + place for place in range(engine.script[number][0])), END)[: call.sampling.max_new_tokens]


def limit_reached(engine: Scripted, script: list[tuple[int, int, int]], limit: int, max_turns: int) -> bool:
    """By counting: a turn or a reply that does not fit with room for a token more."""
    used = 0
    for number, (length, _, reply) in enumerate(script):
        if used + length + 1 > limit:
            return True
        used += length + 1
        if number + 1 in (max_turns, len(script)):
            return False
        if used + reply >= limit:
            return True
        used += reply
    return False


def test_the_environment_hears_every_turn_and_seeds_differ() -> None:
    engine = Scripted(script=[(1, 3), (2, 3), (3, 4)])
    answer, heard = answered(engine, ["yy", "z", None])
    assert heard == [("a",), ("a", "ab"), ("a", "ab", "abc")]
    assert answer.loss_mask == (1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1)
    assert answer.versions == (VersionSpan(3, 0, 8), VersionSpan(4, 8, 12))
    seeds = [call[0].sampling.sampling_seed for call in engine.calls]
    assert (seeds[0], len(set(seeds)), [call[0].rid for call in engine.calls]) == (7, 3, ["r1", "r1-turn1", "r1-turn2"])


def test_without_a_seed_there_is_none() -> None:
    engine = Scripted(script=[(1, 0), (1, 0)])
    answered(engine, ["y", None], seed=None)
    assert [call[0].sampling.sampling_seed for call in engine.calls] == [None, None]


@pytest.mark.parametrize("reply", [3, b"x", {"role": "tool", "content": "4"}, ["a"]])
def test_what_is_no_reply_is_refused(reply: Any) -> None:
    with pytest.raises(RolloutError, match=r"the environment returned .* for prompt 0\. Return a string or None"):
        answered(Scripted(script=[(1, 0), (1, 0)]), [reply])


def test_an_aborted_turn_ends_the_answer() -> None:
    answer, heard = answered(SimulatedEngine(finish_reason="abort"), ["y"])
    assert (answer.finish_reason, heard) == ("abort", [])


async def test_a_sample_carries_the_mask() -> None:
    async def respond(asked: Any, turns: tuple[str, ...]) -> str | None:
        return "zz" if len(turns) == 1 else None

    speak = MultiTurn(respond, LetterTokenizer(), 4, applies_template=False)
    settings = GenerateSettings(SamplingParams(max_new_tokens=40), num_samples=2, max_context_len=64, timeout_seconds=10, seed=4)
    made = await SingleTurnGroupGenerator(SimulatedEngine(seconds=0), LetterTokenizer(), ExactReward(), settings, speak)(
        prompt(), 3
    )
    for one in made.samples:
        assert one.loss_mask == (1, 1, 1, 0, 0, *(1,) * 8)
        assert (one.status, len(one.response_ids)) == (SampleStatus.COMPLETED, 13)


def test_a_mask_of_another_length_is_refused() -> None:
    answer = Answer("r1", (5, 6), (-1.0, -1.0), "stop", (VersionSpan(0, 0, 2),), loss_mask=(1,))
    with pytest.raises(EngineError, match="2 tokens but 1 loss-mask entries"):
        check_answer(GenerateRequest("r1", (), SamplingParams(4)), answer)
    check_answer(GenerateRequest("r1", (), SamplingParams(4)), replace(answer, loss_mask=(1, 0)))


class Templated(LetterTokenizer):
    """ChatML, as Qwen writes it; ``#`` ends a turn. ``forgets`` leaves earlier turns out, ``refuses`` every tool."""

    def __init__(self, *, forgets: bool = False, refuses: bool = False) -> None:
        self.forgets, self.refuses = forgets, refuses

    def apply_chat_template(self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool) -> str:
        if self.refuses and any(message["role"] == "tool" for message in conversation):
            raise ValueError("no tools here")
        shown = [message for message in conversation if not (self.forgets and message["role"] == "assistant")]
        text = "".join(f"<{message['role']}>{message['content']}#\n" for message in shown)
        return text + ("<assistant>" if add_generation_prompt else "")


@dataclass
class Ending(SimulatedEngine):
    """Every turn is ``ab`` and this end."""

    end: str = "#"

    def answer(self, request: GenerateRequest) -> Answer:
        ids = tuple(map(ord, "ab" + self.end))
        return Answer(request.rid, ids, (-1.0,) * len(ids), "stop", (VersionSpan(0, 0, len(ids)),))


@pytest.mark.parametrize("end", ["#", "", "/"])  # the template's own, a stop string that the engine leaves out, another end token
@pytest.mark.parametrize(("reply", "text"), [("no", "<user>no"), ({"role": "tool", "content": "4"}, "<tool>4")])
async def test_a_conversation_reads_as_the_template_writes_it(reply: str | Mapping[str, str], text: str, end: str) -> None:
    async def respond(asked: Any, turns: tuple[str, ...]) -> Any:
        return reply if len(turns) == 1 else None

    engine = Ending(seconds=0, end=end)
    await MultiTurn(respond, Templated(), 4, applies_template=True)(engine, prompt(), SamplingParams(99), "r1")
    added = engine.calls[1][0].input_ids[len(prompt().token_ids) :]
    assert "".join(map(chr, added)) == f"ab{end.removesuffix('#')}#\n{text}#\n<assistant>"


@pytest.mark.parametrize(
    ("tokenizer", "why"),
    [(Templated(forgets=True), "leaves out the model's earlier turns"), (Templated(refuses=True), "no tools here")],
)
async def test_a_template_that_does_not_fit_is_named_with_the_prompt(tokenizer: Templated, why: str) -> None:
    async def respond(asked: Any, turns: tuple[str, ...]) -> Any:
        return {"role": "tool", "content": "4"}

    with pytest.raises(RolloutError, match=rf"the reply of the environment to prompt 0: .*{why}.*--environment-path"):
        await MultiTurn(respond, tokenizer, 4, applies_template=True)(Ending(seconds=0), prompt(), SamplingParams(99), "r1")


def test_an_empty_turn_ends_the_answer() -> None:
    engine = SimulatedEngine(ending=())
    asked = replace(prompt(), token_ids=())

    async def respond(asked: Any, turns: tuple[str, ...]) -> str:
        raise AssertionError("nobody is asked")

    speak = MultiTurn(respond, LetterTokenizer(), 4, applies_template=False)
    answer = run_virtual(speak(engine, asked, SamplingParams(9), "r1"))
    assert (answer.output_ids, answer.versions) == ((), ())
