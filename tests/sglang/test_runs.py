"""Whole runs with real sglang engines: they learn, survive a killed server, and say in a sentence why one does not start."""

import signal
from collections.abc import Callable

import psutil
import pytest

from ..e2e.conftest import RunningMiles
from ..e2e.conftest import start_miles as start_miles  # noqa: PLC0414 - a fixture

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(400)]
Start = Callable[..., RunningMiles]


def loses_nothing(run: RunningMiles, num_rollouts: int) -> None:
    """Every rollout is trained once, within its bound, and nothing of the run is left."""
    steps = [row for row in run.rows if "train/loss" in row]
    assert [row["rollout_id"] for row in steps] == list(range(num_rollouts))
    last = steps[-1]
    assert last["ledger/trained"] == num_rollouts * 16
    alive = sum(last[f"ledger/{state}"] for state in ("waiting", "in_flight", "buffered", "in_training"))
    assert last["ledger/issued"] == last["ledger/trained"] + alive
    assert max(row["rollout/staleness/max"] for row in steps) <= 4
    assert run.survivors() == []


def both_are_lost(run: RunningMiles, killed: str, stopped: str) -> None:
    """One engine is killed, then the other hangs, so that for a while there is none."""
    run.wait_for_rows(5)
    assert run.child("sglang::router").is_running()
    first, second = run.children(killed)[0], run.children(stopped)[1]
    first.send_signal(signal.SIGKILL)
    run.wait_for_rows(7)
    second.send_signal(signal.SIGSTOP)
    assert run.wait() == 0, run.output[-3000:]
    assert run.output.count("starting it again (1 of 3)") == 2


def served_again(run: RunningMiles) -> list[int]:
    """The engines that came back before the run ended."""
    return [engine for engine in (0, 1) if f"engine {engine} serves again" in run.output]


def remember_family_with(run: RunningMiles, word: str) -> None:
    """The processes of a run, as soon as one of them has a command with ``word`` in it."""
    while run.process.poll() is None:
        run.family = psutil.Process(run.process.pid).children(recursive=True)
        try:
            if any(word in " ".join(process.cmdline()) for process in run.family):
                return
        except psutil.NoSuchProcess:
            continue


LOSING = (
    "train-async", "--fully-async", "--preset", "reverse", "--rollout-num-gpus", "2",
    "--rollout-health-check-interval", "1", "--rollout-health-check-timeout", "5", "--eval-interval", "1000",
    "--update-weights-timeout-seconds", "60",  # a scheduler that is stopped in the middle of an update is named after 0.8 of it
)  # fmt: skip


def test_lost_servers_cost_no_sample_and_the_run_learns(start_miles: Start) -> None:
    run = start_miles(*LOSING, "--engine", "sglang", "--rollout-temperature", "0.9", "--num-rollout", "150")
    run.wait_for_rows(5)
    logs = [(run.run_dir / "logs" / f"engine-{engine}.log").read_text() for engine in (0, 1)]
    assert all(log.count("Prefill batch") > 5 for log in logs), "requests are spread"
    both_are_lost(run, "sglang::scheduler", "sglang::scheduler")
    assert served_again(run) == [0, 1]
    loses_nothing(run, 150)
    steps = [row for row in run.rows if "train/loss" in row]
    fresh = [row for row in steps if row["rollout/staleness/max"] == 0]
    assert fresh
    assert max(row["train/train_rollout_logprob_abs_diff"] for row in fresh) < 1e-4
    evaluations = [row["eval/reverse"] for row in run.rows if "eval/reverse" in row]
    assert evaluations[0] < 0.6
    assert evaluations[-1] > 0.8


def test_embedded_engines_lost_behind_the_router_cost_no_sample(start_miles: Start) -> None:
    run = start_miles(*LOSING, "--router-policy", "manual", "--num-rollout", "300")
    both_are_lost(run, "EngineActor", "EngineActor")
    assert served_again(run) == [0, 1], "the run is long enough for both"
    loses_nothing(run, 300)


def test_a_lost_router_costs_no_sample(start_miles: Start) -> None:
    """It is killed, later it hangs; while there is none requests wait, so that the run cannot end before it stands again."""
    run = start_miles(*LOSING, "--router-policy", "round_robin", "--num-rollout", "60")
    run.wait_for_rows(5)
    run.child("sglang::router").send_signal(signal.SIGKILL)
    run.wait_for_words("the router serves again")
    run.wait_for_rows(20)
    run.child("sglang::router").send_signal(signal.SIGSTOP)
    assert run.wait() == 0, run.output[-3000:]
    assert [run.output.count(f"starting it again ({n} of 3)") for n in (1, 2)] == [1, 1]
    assert run.output.count("the router serves again") == 2
    assert "sglang's router ended with exit code" in run.output and "it gave no sign of life for 5 s" in run.output
    loses_nothing(run, 60)


def test_a_server_that_does_not_start_is_told_with_its_last_lines_and_nothing_is_left(start_miles: Start) -> None:
    run = start_miles("train", "--preset", "reverse", "--engine", "sglang", "--sglang", "quantization", "awq")
    remember_family_with(run, "sglang_server.guard")
    assert run.wait() == 1
    error = run.output[run.output.index("error:") :]
    assert "engine 0 did not start: the sglang server ended with exit code" in error
    assert "awq" in error
    assert run.survivors() == []
