"""Whole runs with real sglang engines: they learn, survive a killed server, and say in a sentence why one does not start."""

import signal
from collections.abc import Callable

import pytest

from ..e2e.conftest import RunningMiles
from ..e2e.conftest import start_miles as start_miles  # noqa: PLC0414 - a fixture

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(400)]
Start = Callable[..., RunningMiles]


def test_a_killed_server_costs_no_sample_and_the_run_learns(start_miles: Start) -> None:
    run = start_miles(
        "train-async",
        "--fully-async",
        "--preset",
        "reverse",
        "--engine",
        "sglang",
        "--num-rollout",
        "50",
        "--eval-interval",
        "1000",
    )
    run.wait_for_rows(10)
    run.child("sglang::scheduler").send_signal(signal.SIGKILL)
    assert run.wait() == 0, run.output[-3000:]
    assert "starting it again (1 of 3)" in run.output
    assert "engine 0 serves again" in run.output
    steps = [row for row in run.rows if "train/loss" in row]
    assert [row["rollout_id"] for row in steps] == list(range(50))
    assert steps[-1]["ledger/trained"] == 50 * 16
    assert max(row["rollout/staleness/max"] for row in steps) <= 4
    fresh = [row for row in steps if row["rollout/staleness/max"] == 0]
    assert fresh
    assert max(row["train/train_rollout_logprob_abs_diff"] for row in fresh) < 1e-4
    evaluations = [row["eval/reverse"] for row in run.rows if "eval/reverse" in row]
    assert evaluations[0] < 0.6
    assert evaluations[-1] > 0.8
    assert run.survivors() == []


def test_a_server_that_does_not_start_is_told_with_its_last_lines(start_miles: Start) -> None:
    run = start_miles("train", "--preset", "reverse", "--engine", "sglang", "--sglang", "quantization", "awq")
    assert run.wait() == 1
    error = run.output[run.output.index("error:") :]
    assert "engine 0 did not start: the sglang server ended with exit code" in error
    assert "awq" in error
