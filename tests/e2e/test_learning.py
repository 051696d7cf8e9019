"""The three schedules learn, within their bound, and lose nothing."""

from collections.abc import Callable

import pytest

from tests.e2e.conftest import Collector

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
Run = Callable[..., Collector]


def ends_complete(run: Collector, num_rollouts: int) -> None:
    """Every rollout trained once, the ledger adds up, the last evaluation measured the last weights."""
    steps = [row for row in run.rows if "train/loss" in row]
    assert [row["rollout_id"] for row in steps] == list(range(num_rollouts))
    last = steps[-1]
    alive = sum(last[f"ledger/{state}"] for state in ("waiting", "in_flight", "buffered", "in_training"))
    dropped = sum(value for key, value in last.items() if key.startswith("ledger/dropped/"))
    assert last["ledger/issued"] == last["ledger/trained"] + alive + dropped
    assert last["ledger/trained"] == num_rollouts * 16
    evaluations = [row for row in run.rows if "eval/reverse" in row]
    assert evaluations[0]["eval/reverse"] < 0.6
    assert evaluations[-1]["eval/weight_version"] == last["weight_version"]


@pytest.mark.parametrize("command", ["train", "train-async"])
def test_it_learns(run_here: Run, command: str) -> None:
    run = run_here(command, "--num-rollout", "60")
    ends_complete(run, 60)
    assert run.summary.last_eval["reverse"] >= 0.9
    worst = max(row["rollout/staleness/max"] for row in run.rows if "train/loss" in row)
    assert worst == (0 if command == "train" else 1)


def test_fully_async_learns_within_its_bound_and_discards_nothing(run_here: Run) -> None:
    run = run_here("train-async", "--fully-async", "--num-rollout", "60", "--max-weight-staleness", "2")
    ends_complete(run, 60)
    assert run.summary.last_eval["reverse"] >= 0.9
    steps = [row for row in run.rows if "train/loss" in row]
    assert max(row["rollout/fully_async/max_staleness"] for row in steps) <= 2
    assert max(row["rollout/staleness/max"] for row in steps) <= 2
    assert sum(row["rollout/staleness/max"] for row in steps) > 0, "nothing overlapped"
    assert all(value == 0 for key, value in steps[-1].items() if key.startswith("ledger/dropped/"))
    assert max(row["rollout/spans_versions_share"] for row in steps) > 0, "no update went in flight"


def test_two_engines_share_the_work(run_here: Run) -> None:
    run = run_here("train-async", "--fully-async", "--num-rollout", "6", "--rollout-num-gpus", "2", "--skip-eval-before-train")
    assert [row["rollout_id"] for row in run.rows if "train/loss" in row] == list(range(6))


@pytest.mark.parametrize("schedule", [("train",), ("train-async",), ("train-async", "--fully-async")], ids=" ".join)
def test_ppo_runs_under_every_schedule(run_here: Run, schedule: tuple[str, ...]) -> None:
    critic = ("--advantage-estimator", "ppo", "--num-critic-only-steps", "3", "--actor-num-gpus-per-node", "2")
    run = run_here(*schedule, *critic, "--num-rollout", "6", "--skip-eval-before-train")
    steps = [row for row in run.rows if "train/value_loss" in row]
    assert [row["train/num_optimizer_steps"] for row in steps] == [0, 0, 0, 1, 1, 1]
    assert [("train/loss" in row) for row in steps] == [False] * 3 + [True] * 3


def test_policy_and_engines_agree_on_log_probs_at_any_temperature(run_here: Run) -> None:
    run = run_here("train", "--num-rollout", "6", "--rollout-temperature", "0.7", "--skip-eval-before-train")
    assert max(row["train/train_rollout_logprob_abs_diff"] for row in run.rows if "train/loss" in row) < 1e-4


def test_policy_and_engines_compute_in_bfloat16(run_here: Run) -> None:
    run = run_here("train", "--num-rollout", "8", "--dtype", "bfloat16", "--skip-eval-before-train")
    differences = [row["train/train_rollout_logprob_abs_diff"] for row in run.rows if "train/loss" in row]
    assert len(differences) == 8
    assert 1e-4 < max(differences) < 0.05


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_updates_go_in_flight_in_both_modes(run_here: Run, mode: str) -> None:
    run = run_here("train-async", "--fully-async", "--num-rollout", "12", "--pause-generation-mode", mode)
    assert max(row["train/train_rollout_logprob_abs_diff"] for row in run.rows if "train/loss" in row) < 0.5
