"""A critic on ranks of its own as a user has it: the numbers of one on the policy's ranks, under every schedule."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Collector, Rows, RunningMiles
from tests.e2e.test_bits import without_times

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
Run = Callable[..., Collector]
PPO = ("--advantage-estimator", "ppo")
SAME = (*PPO, "--deterministic", "--skip-eval-before-train", "--lr-decay-style", "constant", "--num-critic-only-steps", "1")
OWN = "--critic-num-gpus-per-node"


def steps(rows: Rows) -> Rows:
    """The rows of training steps, without what depends on the clock."""
    return [row for row in without_times(rows) if "train/value_loss" in row]


def test_where_the_critic_sits_changes_nothing(run_here: Run, tmp_path: Path) -> None:
    """On a rank of its own, moved to the policy's by a resume, and on two beside a policy that shares its device."""
    shared = steps(run_here("train", *SAME, "--num-rollout", "4", run_dir="shared").rows)
    run_here("train", *SAME, "--num-rollout", "2", OWN, "1", "--async-save", run_dir="moved")
    assert (tmp_path / "moved/checkpoints/rollout-000001/critic").is_dir()
    run_here("train", *SAME, "--num-rollout", "4", run_dir="moved")
    moved = [json.loads(line) for line in (tmp_path / "moved/metrics.jsonl").read_text().splitlines()]
    assert steps(moved) == shared
    assert not list((tmp_path / "moved/checkpoints").glob(".*"))
    two = steps(run_here("train", *SAME, "--num-rollout", "4", OWN, "2", "--colocate", run_dir="two").rows)
    for mine, theirs in zip(two, shared, strict=True):
        assert mine.keys() == theirs.keys()
        for name in theirs.keys() & {"train/value_loss", "train/value_mean", "train/critic_grad_norm", "train/loss"}:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("schedule", [("train-async",), ("train-async", "--fully-async")], ids=" ".join)
def test_the_other_schedules_train_it_too(run_here: Run, schedule: tuple[str, ...]) -> None:
    run = run_here(*schedule, *PPO, OWN, "1", "--dtype", "bfloat16", "--num-rollout", "4", "--skip-eval-before-train")
    rows = steps(run.rows)
    assert [row["rollout_id"] for row in rows] == [0, 1, 2, 3]
    assert all(row["train/num_optimizer_steps"] == 1 and row["train/value_loss"] > 0 for row in rows)


def test_a_killed_critic_ends_the_run_within_seconds(start_miles: Callable[..., RunningMiles]) -> None:
    """No rollout ever ends here, so that nothing calls the critic."""
    never = ("--custom-rm-path", "tests.e2e.rewards:never", "--reward-timeout-seconds", "600")
    run = start_miles("train", "--preset", "reverse", *PPO, OWN, "2", "--skip-eval-before-train", *never)
    run.wait_for_words("training")
    run.child("CriticWorker").kill()
    assert run.process.wait(20) == 1, run.output[-3000:]
    assert "of the critic's process ended while the run went on" in run.output
    assert run.survivors() == []
    assert "Traceback" not in run.output
