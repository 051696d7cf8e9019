"""Parts that never answer, in real processes: the run goes on or ends with a sentence, and nothing hangs."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Collector, RunningMiles

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]
Run = Callable[..., Collector]
SHORT = ("--num-rollout", "6", "--skip-eval-before-train", "--eval-interval", "1000")
PARTS = """
import asyncio, time
from miles.engines.wire import GenerateRequest


async def never_ends(engine, prompt, sampling, rid):
    if prompt.index == 5:
        await asyncio.Event().wait()
    (answer,) = await engine.generate([GenerateRequest(rid, prompt.token_ids, sampling)])
    return answer


def hangs(sample, prompt):
    if prompt.index == 5 and sample.sample_index == 0:
        time.sleep(1000)
    return float(sample.text.strip() == prompt.label)


def raises(sample, prompt):
    if prompt.index % 16 == 5:
        raise KeyError("answer")
    return float(sample.text.strip() == prompt.label)
"""


@pytest.fixture(autouse=True)
def users_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("broken_parts", None)


def trained(run: Collector) -> list[int]:
    return [row["rollout_id"] for row in run.rows if "train/loss" in row]


@pytest.mark.parametrize("command", [("train",), ("train-async", "--fully-async", "--max-weight-staleness", "1")])
def test_an_answer_that_never_ends_is_given_up(run_here: Run, command: tuple[str, ...]) -> None:
    run = run_here(
        *command, *SHORT, "--custom-generate-function-path", "broken_parts:never_ends", "--rollout-timeout-seconds", "1",
        "--max-group-retries", "1",
    )  # fmt: skip
    assert trained(run) == list(range(6))
    last = [row for row in run.rows if "train/loss" in row][-1]
    assert last["ledger/dropped/retries_exhausted"] == 1
    assert any("group 5 is sampled again (aborted): group 5 took longer than 1 s" in note for note in run.notes)
    assert any("group 5 is dropped (aborted)" in note for note in run.notes)


def test_a_reward_that_hangs_costs_one_answer(run_here: Run) -> None:
    run = run_here(
        "train-async", "--fully-async", *SHORT, "--rm-type", "none", "--custom-rm-path", "broken_parts:hangs",
        "--reward-timeout-seconds", "1",
    )  # fmt: skip
    assert trained(run) == list(range(6))
    assert sum(row["rollout/reward_failed"] for row in run.rows if "train/loss" in row) == 1
    assert any("1 of 8 answers of group 5 got no reward" in note and "longer than 1 s" in note for note in run.notes)


def test_a_reward_that_raises_costs_its_groups(run_here: Run) -> None:
    run = run_here(
        "train-async", "--fully-async", *SHORT, "--rm-type", "none", "--custom-rm-path", "broken_parts:raises",
        "--max-group-retries", "0",
    )  # fmt: skip
    assert trained(run) == list(range(6))
    last = [row for row in run.rows if "train/loss" in row][-1]
    assert last["ledger/dropped/reward_failed"] >= 4
    assert any("group 5 is dropped (reward_failed): the reward raised KeyError('answer')" in note for note in run.notes)


def test_an_engine_that_stops_answering_ends_the_run_where_none_is_started_again(
    start_miles: Callable[..., RunningMiles],
) -> None:
    run = start_miles(
        "train-async", "--fully-async", "--preset", "reverse", "--engine-max-restarts", "0",
        "--rollout-health-check-interval", "1", "--rollout-health-check-timeout", "2", "--update-weights-timeout-seconds", "20",
    )  # fmt: skip
    run.wait_for_rows(3)
    run.child("EngineActor").send_signal(signal.SIGSTOP)
    assert run.process.wait(90) == 1, run.output[-3000:]
    error = run.output[run.output.index("error") :]
    assert "engine 0" in error
    assert "no sign of life" in error or "did not answer within" in error, "the watch or a publication notices it first"
    assert "Traceback" not in run.output
    assert run.survivors() == []
