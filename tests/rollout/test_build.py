"""The rollout side as a run builds it, from a real configuration, tokenizer and prompt file."""

from typing import Any

import pytest

from miles.clock import WallClock
from miles.config.options.rollout import FullyAsync, OneStepOff, SyncRollout
from miles.rollout.build import build_rollout, eval_generator, prompt_source
from miles.rollout.fully_async import FullyAsyncRolloutFn
from miles.rollout.inference import InferenceRolloutFn
from miles.rollout.ledger import Ledger
from miles.simulation.virtual_time import run_virtual

from ..builders import derived
from .simulated import PRESET, LetterTokenizer, SimulatedEngine, config, group

pytestmark = pytest.mark.unit


def quietly(line: str) -> None:
    """Say nothing."""


def build(rollout: Any, path: str, engine: SimulatedEngine, **more: Any) -> Any:
    facts = derived(rollout_function_path=path)
    return build_rollout(config(rollout), facts, LetterTokenizer(), engine, WallClock(), quietly, **more)


@pytest.mark.parametrize(
    ("rollout", "path", "built"),
    [
        (SyncRollout(), "miles.rollout.inference:InferenceRolloutFn", InferenceRolloutFn),
        (OneStepOff(), "miles.rollout.inference:InferenceRolloutFn", InferenceRolloutFn),
        (FullyAsync(max_weight_staleness=0), "miles.rollout.fully_async:FullyAsyncRolloutFn", FullyAsyncRolloutFn),
    ],
)
def test_each_schedule_makes_its_first_two_rollouts(rollout: Any, path: str, built: type) -> None:
    async def main() -> list[int]:
        side = build(rollout, path, SimulatedEngine())
        assert type(side.fn) is built
        indices = []
        for rollout_id in range(2):
            made = await side.fn(rollout_id, rollout_id)
            indices += [group.index for group in made.groups]
            assert len(made.samples) == 4
            side.ledger.mark_trained(made)
            side.fn.published(rollout_id + 1)
            await side.fn.pause()
            side.fn.resume()
        await side.close()
        assert side.ledger.counts()["ledger/trained"] == 4
        return indices

    assert run_virtual(main()) == [0, 1, 2, 3]


def test_a_resumed_run_goes_on_with_its_ledger() -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.reserve()
    ledger.buffer(group(2))
    restored = Ledger.restore(ledger.snapshot(), ledger.finished())
    engine = SimulatedEngine()
    side = build(SyncRollout(), "miles.rollout.inference:InferenceRolloutFn", engine, ledger=restored)
    assert side.ledger is restored
    assert [group.index for group in run_virtual(side.fn(4, 4)).groups] == [0, 2]
    assert len(engine.calls) == 1, "the finished group is not sampled again"


class OwnRolloutFn:
    """A user's function that knows nothing of groups sampled before."""

    def __init__(self, given: Any) -> None:
        self.given = given


def test_finished_groups_that_a_users_function_does_not_take_are_sampled_again() -> None:
    ledger = Ledger()
    ledger.reserve()
    ledger.buffer(group(0))
    side = build(SyncRollout(), f"{__name__}:OwnRolloutFn", SimulatedEngine(), ledger=ledger)
    assert side.ledger.counts()["ledger/waiting"] == 1


def test_evaluation_samples_with_its_own_parameters() -> None:
    engine = SimulatedEngine()
    settings, facts = config(SyncRollout()), derived(eval_temperature=0.0, eval_max_response_len=5)
    side = build(SyncRollout(), "miles.rollout.inference:InferenceRolloutFn", engine)
    held_out = prompt_source(settings, facts, LetterTokenizer(), PRESET / "heldout.jsonl").all_prompts()
    generate = eval_generator(settings, facts, LetterTokenizer(), engine, side.rewards)
    made = run_virtual(generate(held_out[0], 7))
    (call,) = engine.calls
    assert [(request.sampling.temperature, request.sampling.max_new_tokens) for request in call] == [(0.0, 5)]
    assert len(held_out) == len((PRESET / "heldout.jsonl").read_text().splitlines())
    assert made.version_admitted == 7
