"""Every example of a part of one's own, through the check of the dry run and in use."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from miles.config.options.rollout import FullyAsync, SyncRollout
from miles.config.resolve import resolve
from miles.config.sources import FlagValue, Sources
from miles.config.user_code import check_user_code
from miles.engines.wire import SamplingParams
from miles.loops.evaluate import EvalDataset, EvalInput
from miles.rollout.fully_async import FullyAsyncRolloutFn
from miles.rollout.function_api import FunctionRolloutFn
from miles.rollout.inference import InferenceRolloutFn
from miles.simulation.virtual_time import run_virtual
from miles.types import SampleStatus, staleness
from tests.rollout.simulated import SimulatedEngine, SimulatedGenerator, given, group, prompt, sample

pytestmark = pytest.mark.unit
FOLDER = Path(__file__).parents[2] / "examples/custom_parts"


@pytest.fixture(autouse=True)
def beside_the_examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(FOLDER)
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == FOLDER:
            del sys.modules[name]


@pytest.mark.parametrize(("command", "flags"), [
    ("train", {"rm_type": "none", "custom_rm_path": "partial_credit:reward"}),
    ("train", {"custom_generate_function_path": "second_try:generate"}),
    ("train", {"custom_generate_function_path": "openai_chat:generate"}),
    ("train", {"environment_path": "try_again:respond", "rm_type": "none", "custom_rm_path": "try_again:reward"}),
    ("train", {"dynamic_sampling_filter_path": "middle_difficulty:keep"}),
    ("train", {"rollout_sample_filter_path": "middle_difficulty:select"}),
    ("train-async", {"fully_async": True, "custom_async_data_buffer_path": "hardest_first:HardestFirst"}),
    ("train", {"rollout_function_path": "in_waves:InWaves"}),
    ("train-async", {"rollout_api": "function", "rollout_function_path": "all_together:rollout"}),
    ("train", {"eval_function_path": "pass_at_k:evaluate"}),
    ("train", {"eval_checkpoint_function_path": "moved_weights:evaluate"}),
    ("train", {"data_source_path": "growing_words:GrowingWords"}),
])  # fmt: skip
def test_the_dry_run_accepts_it(command: str, flags: dict[str, Any]) -> None:
    found = check_user_code(resolve(command, Sources(flags_for(flags), preset="reverse", environ={}, cwd=FOLDER)))
    assert {code.option for code in found} == set(flags) - {"rm_type", "fully_async", "rollout_api"}


def flags_for(values: dict[str, Any]) -> dict[str, FlagValue]:
    return {name: FlagValue(value, "--" + name.replace("_", "-")) for name, value in values.items()}


def test_every_example_stands_in_the_list() -> None:
    text = (FOLDER / "README.md").read_text()
    assert all(path.name in text for path in FOLDER.glob("*.py"))


def test_partial_credit() -> None:
    from partial_credit import reward

    assert [reward(sample(text=text), prompt(label="abcd")) for text in ("abcd", "abxx", "", "abcdefgh")] == [1.0, 0.5, 0.0, 0.5]


def test_second_try() -> None:
    from second_try import generate

    for reason, calls in (("stop", 1), ("length", 2)):
        engine = SimulatedEngine(finish_reason=reason)
        answer = run_virtual(generate(engine, prompt(), SamplingParams(8, sampling_seed=4), "r1"))
        assert (answer.rid, len(engine.calls)) == ("r1", calls)


async def test_try_again() -> None:
    from try_again import respond, reward

    asked = replace(prompt(label="ba"), text="<bos>rev:ab=")
    assert [await respond(asked, turns) for turns in (("ab",), ("ab", "ba"))] == [asked.text, None]
    texts = ["ba", "abrev:ab=ba", "abrev:ab=ab"]
    assert [reward(sample(text=text), asked) for text in texts] == [1.0, 0.5, 0.0]


def test_middle_difficulty() -> None:
    from middle_difficulty import keep, select

    assert [keep(group(rewards=rewards)) for rewards in ((0.0, 0.0), (0.0, 1.0), (1.0, 1.0))] == [False, True, False]
    cut = group(status=SampleStatus.TRUNCATED)
    assert select([group(), cut]) == [[True, True], [False, False]]


def test_hardest_first_keeps_the_bound() -> None:
    async def main() -> list[int]:
        fn, lags = FullyAsyncRolloutFn(setup), []
        for rollout_id in range(6):
            rollout = await fn(rollout_id, rollout_id)
            lags += [staleness(rollout_id, made) for made in rollout.groups]
            setup.ledger.mark_trained(rollout)
            fn.published(rollout_id + 1)
        await fn.close()
        return lags

    options = FullyAsync(
        custom_async_data_buffer_path="hardest_first:HardestFirst", max_weight_staleness=2, no_progress_seconds=2e9
    )
    setup = given(SimulatedGenerator(3), options, num_rollout=6)
    assert max(run_virtual(main())) <= 2
    from hardest_first import HardestFirst

    buffer = HardestFirst()
    for index, (version, rewards) in enumerate([(1, (0.0, 0.0)), (0, (1.0, 1.0)), (0, (0.0, 1.0))]):
        buffer.put(group(index, version, rewards))
    assert [made.index for made in buffer.take(3)] == [2, 1, 0]


def test_in_waves_makes_the_rollouts_of_the_standard_function() -> None:
    from all_together import rollout
    from in_waves import InWaves

    async def batches(fn: Any, setup: Any) -> list[tuple[int, ...]]:
        made = []
        for rollout_id in range(3):
            rollout = await fn(rollout_id, rollout_id)
            made.append(tuple(group.index for group in rollout.groups))
            setup.ledger.mark_trained(rollout)
            fn.published(rollout_id + 1)
        await fn.close()
        return made

    ours, also_ours, theirs = (given(SimulatedGenerator(5), SyncRollout(), batch_size=6) for _ in range(3))
    wanted = run_virtual(batches(InferenceRolloutFn(theirs), theirs))
    assert run_virtual(batches(InWaves(ours), ours)) == wanted
    assert run_virtual(batches(FunctionRolloutFn(rollout, also_ours), also_ours)) == wanted


def test_growing_words_goes_on_where_it_stood() -> None:
    from growing_words import GrowingWords

    run = resolve("train", Sources(flags_for({"data_source_path": "growing_words:GrowingWords"}), preset="reverse", environ={}))
    source = GrowingWords(run.config)
    first = [next(source) for _ in range(5)]
    again = GrowingWords(run.config)
    again.restore(3)
    assert [next(again), next(again)] == first[3:]
    assert again.state() == 5
    assert all(len(line["label"]) == 3 and line["prompt"] == f"<bos>rev:{line['label'][::-1]}=" for line in first)


def test_moved_weights() -> None:
    from moved_weights import evaluate

    found = evaluate(Path(__file__).parents[2] / "src/miles/presets/reverse/model", 0)
    assert found["num_weights"] > 300_000
    assert 0 < found["rms"] < 1


def test_pass_at_k() -> None:
    from pass_at_k import evaluate

    async def generate_group(asked: Any, version: int) -> Any:
        return replace(group(asked.index, version, ((1.0, 0.0) if asked.index else (0.0, 0.0))), prompt=asked)

    setup = EvalInput((EvalDataset("toy", (prompt(0), prompt(1))),), generate_group, 3)
    assert run_virtual(evaluate(setup)) == {"eval/toy": 0.25, "eval/toy/any": 0.5}
