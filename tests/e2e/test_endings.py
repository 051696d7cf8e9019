"""However a run ends: nothing is left running, what was trained is saved, and the user reads a sentence."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from miles.config.records import read_record
from tests.e2e.conftest import RunningMiles

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
Start = Callable[..., RunningMiles]
RAY_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")  # end by themselves a minute after their raylet
FULLY_ASYNC = ("train-async", "--fully-async", "--preset", "reverse")


@pytest.mark.parametrize(("command", "number", "code"), [
    (("train", "--preset", "reverse"), signal.SIGINT, 130),
    (FULLY_ASYNC, signal.SIGINT, 130),
    (("train-async", "--preset", "reverse"), signal.SIGTERM, 143),
])  # fmt: skip
def test_the_first_signal_ends_the_step_and_saves(start_miles: Start, command: tuple[str, ...], number: int, code: int) -> None:
    run = start_miles(*command)
    run.wait_for_rows(3)
    run.signal(signal.Signals(number))
    assert run.wait() == code, run.output[-3000:]
    assert run.survivors() == []
    done = max(row["rollout_id"] for row in run.rows)
    checkpoint = run.run_dir / "checkpoints" / (run.run_dir / "checkpoints" / "latest").read_text().strip()
    assert checkpoint.name == f"rollout-{done:06d}"
    assert json.loads((checkpoint / "state.json").read_text())["rollouts_done"] == done + 1
    record = read_record(run.run_dir)
    assert record.command == command[0]
    assert {row.option: row.origin for row in record.rows}["lr"] == "preset reverse"
    assert "Traceback" not in run.output


@pytest.mark.parametrize(("victim", "words"), [("EngineActor", "engine 0"), ("PolicyWorker", "policy")])
def test_a_killed_process_is_named_within_seconds(start_miles: Start, victim: str, words: str) -> None:
    run = start_miles(*FULLY_ASYNC, "--engine-max-restarts", "0")
    run.wait_for_rows(3)
    run.child(victim).kill()
    assert run.process.wait(30) == 1, run.output[-3000:]
    assert run.survivors() == []
    error = run.output[run.output.index("error") :]
    assert words in error
    assert "died" in error or "ended" in error
    assert "Traceback" not in run.output


@pytest.mark.parametrize("schedule", [("train",), ("train-async",), ("train-async", "--fully-async")], ids=" ".join)
def test_a_policy_killed_while_the_engines_work_ends_the_run(start_miles: Start, schedule: tuple[str, ...]) -> None:
    """No rollout ever ends here, so that nothing calls the policy."""
    never = ("--custom-rm-path", "tests.e2e.rewards:never", "--reward-timeout-seconds", "600")
    run = start_miles(*schedule, "--preset", "reverse", "--skip-eval-before-train", *never)
    run.wait_for_words("training")
    run.child("PolicyWorker").kill()
    assert run.process.wait(20) == 1, run.output[-3000:]
    assert "the policy's process ended while the run went on" in run.output
    assert run.survivors() == []
    assert "Traceback" not in run.output


def test_a_killed_driver_leaves_no_process_behind(start_miles: Start) -> None:
    run = start_miles(*FULLY_ASYNC)
    run.wait_for_rows(2)
    run.process.kill()
    run.process.wait(20)
    assert [process.name() for process in run.survivors() if process.name() not in RAY_AGENTS] == []


def test_a_sync_run_goes_on_after_its_driver_was_killed(start_miles: Start) -> None:
    flags = ("train", "--preset", "reverse", "--num-rollout", "12", "--save-interval", "3")
    run = start_miles(*flags)
    run.wait_for_rows(8)
    run.process.kill()
    run.process.wait(20)
    assert [process.name() for process in run.survivors() if process.name() not in RAY_AGENTS] == []
    trained_before = [row["rollout_id"] for row in run.rows if "train/loss" in row]
    resumed = start_miles(*flags)
    assert resumed.wait() == 0, resumed.output[-3000:]
    assert [row["rollout_id"] for row in resumed.rows if "train/loss" in row] == list(range(12))
    aside = sorted(run.run_dir.glob("metrics.after-*.jsonl"))
    later = [json.loads(line)["rollout_id"] for path in aside for line in path.read_text().splitlines()]
    assert set(later) <= set(trained_before)
    last = [row for row in resumed.rows if "train/loss" in row][-1]
    assert last["ledger/trained"] == last["ledger/issued"] == 12 * 16


def test_a_resumed_run_must_be_the_same_run(start_miles: Start) -> None:
    flags = ("train", "--preset", "reverse", "--num-rollout", "2", "--skip-eval-before-train")
    assert start_miles(*flags).wait() == 0
    other = start_miles(*flags, "--lr", "1e-5", "--num-rollout", "3")
    assert other.wait() == 2
    assert "lr = 1e-05" in other.output or "lr = 1e-5" in other.output
    assert "0.0002" in other.output and "--run-dir" in other.output


def test_two_runs_cannot_share_a_folder(start_miles: Start) -> None:
    run = start_miles("train", "--preset", "reverse")
    run.wait_for_rows(1)
    second = start_miles("train", "--preset", "reverse")
    assert second.wait() == 3
    assert "is in use by process" in second.output
    run.signal(signal.SIGINT)
    assert run.wait() == 130


def test_bad_prompts_are_named_before_anything_trains(start_miles: Start, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "<bos>rev:abc=", "label": "cba"}\n{"promt": "x"}\n')
    run = start_miles("train", "--preset", "reverse", "--prompt-data", str(prompts))
    assert run.wait() == 2
    assert f"{prompts}:2" in run.output
    assert "Traceback" not in run.output
