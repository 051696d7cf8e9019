"""Evaluation counts what it asked, and a failure arrives as itself."""

import pytest

from miles.errors import EngineError, RolloutError
from miles.loops.evaluate import BoundEvaluator, EvalDataset, evaluate
from miles.types import Group, Prompt, Sample, SampleStatus, VersionSpan

pytestmark = pytest.mark.unit
PROMPTS = tuple(Prompt(index, index, 0, "q", (1,)) for index in range(4))


def answer_to(prompt: Prompt, version: int) -> Group:
    """Prompt 0 is right, 1 wrong, 2 cut off, 3 without a reward."""
    status = (SampleStatus.COMPLETED, SampleStatus.COMPLETED, SampleStatus.TRUNCATED, SampleStatus.FAILED)[prompt.index]
    reward = (1.0, 0.0, 0.0, None)[prompt.index]
    length = prompt.index + 1
    span = (VersionSpan(version, 0, length),)
    sample = Sample(prompt.index, 0, (1,), (5,) * length, (-1.0,) * length, (1,) * length, span, status, "", reward)
    return Group(prompt, (sample,), version)


async def test_every_data_set_has_its_numbers() -> None:
    async def generate(prompt: Prompt, version_admitted: int) -> Group:
        return answer_to(prompt, version_admitted)

    sets = (EvalDataset("toy", PROMPTS), EvalDataset("one", PROMPTS[:1]))
    metrics = await BoundEvaluator(evaluate, sets, generate)(7)
    assert metrics["eval/toy"] == 0.25
    assert metrics["eval/one"] == 1.0
    assert metrics["eval/toy/num_samples"] == 4
    assert metrics["eval/toy/reward_failed"] == 1
    assert metrics["eval/toy/truncated_ratio"] == 0.25
    assert metrics["eval/toy/response_len/mean"] == 2.5


async def test_what_took_too_long_is_counted_and_the_rest_measured() -> None:
    async def generate(prompt: Prompt, version_admitted: int) -> Group:
        if prompt.index == 1:
            raise TimeoutError
        return answer_to(prompt, version_admitted)

    metrics = await BoundEvaluator(evaluate, (EvalDataset("toy", PROMPTS[:2]),), generate)(0)
    assert (metrics["eval/toy"], metrics["eval/toy/timed_out"], metrics["eval/toy/num_samples"]) == (1.0, 1.0, 1.0)


async def test_tokens_of_another_version_are_refused() -> None:
    async def generate(prompt: Prompt, version_admitted: int) -> Group:
        return answer_to(prompt, version_admitted + 1)

    with pytest.raises(RolloutError, match=r"should measure weight version 3, but tokens came from \[4\]"):
        await BoundEvaluator(evaluate, (EvalDataset("toy", PROMPTS),), generate)(3)


async def test_a_failing_engine_is_told_as_itself() -> None:
    async def generate(prompt: Prompt, version_admitted: int) -> Group:
        raise EngineError("no answer")

    with pytest.raises(EngineError, match="no answer"):
        await BoundEvaluator(evaluate, (EvalDataset("toy", PROMPTS),), generate)(0)
