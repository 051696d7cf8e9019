"""Several trainer ranks as a user has them: a run goes on with another number of them, and the engines sample their weights."""

from collections.abc import Callable

import pytest

from tests.e2e.conftest import Collector, Rows

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
SAME = ("--deterministic", "--lr-decay-style", "constant", "--rollout-temperature", "0.7", "--skip-eval-before-train")


def steps(rows: Rows) -> Rows:
    """The rows of training steps."""
    return [row for row in rows if "train/loss" in row]


def test_a_run_goes_on_with_two_ranks(run_here: Callable[..., Collector]) -> None:
    whole = steps(run_here("train", *SAME, "--num-rollout", "3", run_dir="whole").rows)
    parts = [run_here("train", *SAME, "--num-rollout", "2", run_dir="parts")]
    parts.append(run_here("train", *SAME, "--num-rollout", "5", "--actor-num-gpus-per-node", "2", run_dir="parts"))
    made = [row for part in parts for row in steps(part.rows)]
    assert [row["rollout_id"] for row in made] == [0, 1, 2, 3, 4]
    for mine, theirs in zip(made[:3], whole, strict=True):  # later answers may differ where two tokens are nearly as likely
        assert mine["rollout/raw_reward"] == theirs["rollout/raw_reward"]
        assert mine["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-3, abs=1e-6)
        assert mine["train/grad_norm"] == pytest.approx(theirs["train/grad_norm"], rel=1e-3)
    assert all(row["train/train_rollout_logprob_abs_diff"] < 1e-4 for row in made)
