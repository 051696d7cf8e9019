"""Generation: what the engine is asked, what becomes of its answers, and that nothing is left running."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.engines.wire import Answer, EngineApi, GenerateRequest, SamplingParams
from miles.errors import EngineError, RolloutError
from miles.rollout.generate import GenerateSettings, SingleTurnGroupGenerator, before_stop, check_answer, sample_seed
from miles.rollout.rewards import ExactReward
from miles.simulation.virtual_time import run_virtual
from miles.types import Group, Prompt, SampleStatus, VersionSpan

from .simulated import LetterTokenizer, SimulatedEngine, prompt

pytestmark = pytest.mark.unit
SETTINGS = GenerateSettings(SamplingParams(max_new_tokens=8), num_samples=3, max_context_len=64, timeout_seconds=10, seed=42)


def generator(engine: EngineApi, generate: Any = None, **changes: Any) -> SingleTurnGroupGenerator:
    return SingleTurnGroupGenerator(engine, LetterTokenizer(), ExactReward(), replace(SETTINGS, **changes), generate)


def seeds(engine: SimulatedEngine) -> list[int | None]:
    return [request.sampling.sampling_seed for call in engine.calls for request in call]


@pytest.mark.parametrize("granularity", ["group", "sample"])
def test_a_group_is_sampled_and_scored(granularity: str) -> None:
    engine = SimulatedEngine()
    made: Group = run_virtual(generator(engine, granularity=granularity)(prompt(5), 3))
    assert [len(call) for call in engine.calls] == ([3] if granularity == "group" else [1, 1, 1])
    assert (made.index, made.version_admitted, made.oldest_version, len(made.samples)) == (5, 3, 3, 3)
    for place, one in enumerate(made.samples):
        assert (one.group_index, one.sample_index, one.text, one.reward) == (5, place, "ba", 1.0)
        assert one.response_ids == (98, 97, 2)
        assert one.loss_mask == (1, 1, 1)
        assert one.prompt_ids == (97, 98)
    assert engine.aborted == []


def test_both_granularities_ask_for_the_same_samples() -> None:
    whole, single = SimulatedEngine(), SimulatedEngine()
    run_virtual(generator(whole)(prompt(5), 0))
    run_virtual(generator(single, granularity="sample")(prompt(5), 0))
    assert seeds(whole) == seeds(single) == [sample_seed(42, "train", 5, place) for place in range(3)]


@given(st.integers(0, 2**40), st.integers(0, 10**6), st.integers(0, 64))
@settings(max_examples=200)
def test_seeds_have_31_bits_and_depend_on_the_place(seed: int, group_index: int, sample_index: int) -> None:
    mine = sample_seed(seed, "train", group_index, sample_index)
    assert 0 <= mine < 2**31
    assert mine == sample_seed(seed, "train", group_index, sample_index)
    assert mine != sample_seed(seed, "eval", group_index, sample_index)
    assert mine != sample_seed(seed, "train", group_index, sample_index + 1)
    assert mine != sample_seed(seed, "train", group_index + 1, sample_index)


def test_seeds_do_not_change_between_releases() -> None:
    assert sample_seed(42, "train", 7, 3) == 194476315


def test_the_answer_fits_into_the_context() -> None:
    engine = SimulatedEngine()
    run_virtual(generator(engine, max_context_len=6)(prompt(), 0))
    assert {request.sampling.max_new_tokens for request in engine.calls[0]} == {4}
    with pytest.raises(RolloutError, match="has 2 tokens and leaves no room for an answer in a context of 2"):
        run_virtual(generator(engine, max_context_len=2)(prompt(), 0))


@pytest.mark.parametrize(
    ("finish_reason", "status", "reward"),
    [("stop", SampleStatus.COMPLETED, 1.0), ("length", SampleStatus.TRUNCATED, 0.0), ("abort", SampleStatus.ABORTED, None)],
)
def test_how_an_answer_ends(finish_reason: str, status: SampleStatus, reward: float | None) -> None:
    made = run_virtual(generator(SimulatedEngine(finish_reason=finish_reason))(prompt(), 0))
    assert {(one.status, one.reward) for one in made.samples} == {(status, reward)}


def test_a_stop_string_ends_the_text() -> None:
    sampling = SamplingParams(8, stop=("\n", "a"))
    made = run_virtual(generator(SimulatedEngine(), sampling=sampling)(prompt(), 0))
    assert {one.text for one in made.samples} == {"b"}
    assert before_stop("abc", ["c", "b"]) == "a"
    assert before_stop("abc", ["x"]) == "abc"


@pytest.mark.parametrize("granularity", ["group", "sample"])
def test_a_group_that_takes_too_long_is_aborted(granularity: str) -> None:
    engine = SimulatedEngine(seconds=1000)
    with pytest.raises(TimeoutError, match=r"group 5 took longer than 10 s \(--rollout-timeout-seconds\)"):
        run_virtual(generator(engine, granularity=granularity)(prompt(5), 0))
    assert sorted(engine.aborted) == sorted(request.rid for call in engine.calls for request in call)
    assert len(engine.aborted) == 3


def test_a_cancelled_group_is_aborted() -> None:
    async def main(engine: SimulatedEngine) -> None:
        task = asyncio.ensure_future(generator(engine)(prompt(), 0))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    engine = SimulatedEngine(seconds=1000)
    run_virtual(main(engine))
    assert len(engine.aborted) == 3


def test_one_failed_request_ends_the_others() -> None:
    class OneFails(SimulatedEngine):
        async def generate(self, requests: Any) -> list[Answer]:
            if len(self.calls) == 1:
                self.calls.append(list(requests))
                raise EngineError("engine 1: out of memory")
            return await super().generate(requests)

    engine = OneFails()
    with pytest.raises(EngineError, match="out of memory"):
        run_virtual(generator(engine, granularity="sample")(prompt(), 0))
    assert len(engine.aborted) == 2


def test_every_attempt_has_names_of_its_own() -> None:
    async def main(engine: SimulatedEngine) -> None:
        first, second = generator(engine), generator(engine, purpose="eval")
        for generate in (first, first, second):
            await generate(prompt(), 0)

    engine = SimulatedEngine()
    run_virtual(main(engine))
    rids = [request.rid for call in engine.calls for request in call]
    assert len(set(rids)) == 9
    assert [rid.split("-")[0] for rid in rids] == ["train"] * 6 + ["eval"] * 3


async def my_generate(engine: EngineApi, asked: Prompt, sampling: SamplingParams, rid: str) -> Answer:
    (answer,) = await engine.generate([GenerateRequest(rid, asked.token_ids * 2, sampling)])
    return answer


def test_a_generate_function_of_ones_own() -> None:
    engine = SimulatedEngine()
    made = run_virtual(generator(engine, my_generate)(prompt(), 0))
    assert [one.text for one in made.samples] == ["baba"] * 3
    assert seeds(engine) == [sample_seed(42, "train", 0, place) for place in range(3)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rid": "other"}, "got the answer of 'other'"),
        ({"logprobs": (-1.0,)}, "2 tokens but 1 log-probs"),
        ({"versions": ()}, "do not cover 2 tokens"),
        ({"versions": (VersionSpan(0, 0, 1), VersionSpan(1, 0, 2))}, "do not cover"),
        ({"versions": (VersionSpan(0, 0, 3),)}, "do not cover"),
        ({"versions": (VersionSpan(0, 0, 0), VersionSpan(0, 0, 2))}, "do not cover"),
    ],
)
def test_an_answer_whose_parts_do_not_fit_is_refused(changes: dict[str, Any], words: str) -> None:
    answer = Answer("r", (5, 6), (-1.0, -2.0), "stop", (VersionSpan(0, 0, 1), VersionSpan(1, 1, 2)))
    request = GenerateRequest("r", (1,), SamplingParams(2))
    check_answer(request, answer)
    with pytest.raises(EngineError, match=words):
        check_answer(request, replace(answer, **changes))
