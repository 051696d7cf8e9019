"""The driver is killed at random moments; what the run amounts to in the end is what an undisturbed one does."""

from pathlib import Path

import pytest

from tests.chaos.lives import live_through, num_alike

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
SHORT = ("--preset", "reverse", "--num-rollout", "24", "--save-interval", "2", "--skip-eval-before-train")


def test_a_fully_async_run_survives_kills(tmp_path: Path) -> None:
    chaos = live_through(["train-async", "--fully-async", *SHORT], tmp_path / "run", 2, seed=7)
    chaos.check(24, batch_size=16)
    assert max(row["rollout/fully_async/max_staleness"] for row in chaos.steps) <= 4


def test_a_sync_run_that_was_killed_is_the_uninterrupted_one(tmp_path: Path) -> None:
    flags = ["train", *SHORT, "--deterministic"]
    whole = live_through(flags, tmp_path / "whole", 0, seed=0)
    chaos = live_through(flags, tmp_path / "run", 1, seed=3)
    chaos.check(24, batch_size=16)
    assert chaos.measured == whole.measured


def test_a_run_killed_at_any_step_goes_on_with_other_ranks(tmp_path: Path) -> None:
    flags = ["train", "--preset", "reverse", "--num-rollout", "9", "--save-interval", "1", "--async-save", "--deterministic"]
    flags += ["--keep-checkpoints", "2", "--skip-eval-before-train"]
    whole = live_through(flags, tmp_path / "whole", 0, seed=0)
    chaos = live_through(flags, tmp_path / "run", 2, seed=11, within_rows=3, ranks=(1, 2))
    chaos.check(9, batch_size=16)
    assert num_alike(chaos.steps, whole.steps, tolerance=1e-3) > 0
    kept = {path.name for path in (tmp_path / "run/checkpoints").glob("rollout-*")}
    assert kept == {"rollout-000007", "rollout-000008"}
