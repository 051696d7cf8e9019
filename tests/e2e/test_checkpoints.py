"""Checkpoints as a user meets them: written beside the steps, gone on from, and begun with by another run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from miles.loops.export_run import export_run
from tests.e2e.conftest import Collector
from tests.e2e.test_bits import without_times

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
Run = Callable[..., Collector]
SAME = ("--deterministic", "--lr-decay-style", "constant", "--skip-eval-before-train")


@pytest.mark.parametrize("more", [(), ("--lora-rank", "4")])
def test_saving_beside_the_steps_changes_no_bit(run_here: Run, tmp_path: Path, more: tuple[str, ...]) -> None:
    whole = run_here("train", *SAME, *more, "--num-rollout", "4", run_dir="whole")
    saving = ("--async-save", "--save-interval", "1", "--keep-checkpoints", "1")
    run_here("train", *SAME, *more, *saving, "--num-rollout", "2", run_dir="parts")
    run_here("train", *SAME, *more, *saving, "--num-rollout", "4", run_dir="parts")
    rows = [json.loads(line) for line in (tmp_path / "parts/metrics.jsonl").read_text().splitlines()]
    steps = [row for row in without_times(rows) if "train/loss" in row]
    assert steps == [row for row in without_times(whole.rows) if "train/loss" in row]
    assert {path.name for path in (tmp_path / "parts/checkpoints").iterdir()} == {"latest", "rollout-000003"}


def test_a_run_begins_with_what_another_has_learned(run_here: Run) -> None:
    first = run_here("train", "--num-rollout", "12", "--lora-rank", "16", "--lr", "2e-3", run_dir="first")
    assert first.summary.last_eval["reverse"] > first.summary.first_eval["reverse"] + 0.05, "adapters learn"
    again = ("--load", str(first.summary.run_dir), "--lora-rank", "16")
    second = run_here("train", "--num-rollout", "1", *again, run_dir="second")
    assert second.summary.first_eval == first.summary.last_eval
    assert [row["rollout_id"] for row in second.rows if "train/loss" in row] == [0]
    export_run(first.summary.run_dir, first.summary.run_dir / "merged", merge_lora=True)
    merged = AutoModelForCausalLM.from_pretrained(first.summary.run_dir / "merged")
    assert torch.isfinite(merged(torch.tensor([[1, 2, 3]])).logits).all()
