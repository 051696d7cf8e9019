"""``miles sft`` as a user has it: it learns, goes on bit for bit, and what it wrote is a model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from miles.config.resolve import resolve_sft
from miles.config.sources import Sources
from miles.loops.export_run import export_run
from miles.loops.sft import start_sft
from tests.e2e.conftest import Collector, flags_of
from tests.e2e.test_bits import without_times

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def teach(one_ray: None, tmp_path: Path) -> Callable[..., Collector]:
    """``teach("--train-iters", "20")`` runs the preset in this process; fails unless it exits with 0."""

    def run(*arguments: str, run_dir: str = "run") -> Collector:
        flags = flags_of([*arguments, "--run-dir", str(tmp_path / run_dir)])
        collector = Collector()
        sources = Sources(flags=flags, preset="reverse-sft", environ={}, cwd=tmp_path)
        assert start_sft(resolve_sft(sources), collector) == 0
        return collector

    return run


def steps_of(folder: Path) -> list[dict[str, object]]:
    """Rows of steps without times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in without_times(rows) if "train/loss" in row]


def test_it_learns_and_goes_on_bit_for_bit(teach: Callable[..., Collector], tmp_path: Path) -> None:
    same = ("--deterministic", "--lr-warmup-iters", "5")
    whole = teach(*same, "--train-iters", "40", run_dir="whole")
    first, last = whole.summary.first_eval["reverse"], whole.summary.last_eval["reverse"]
    assert first == pytest.approx(4.6, abs=0.3), "log 100: nothing is known"
    assert last < 0.75 * first
    saving = ("--async-save", "--save-interval", "10", "--keep-checkpoints", "1", "--keep-best-by", "eval/reverse")
    teach(*same, *saving, "--train-iters", "20", run_dir="parts")
    teach(*same, *saving, "--train-iters", "40", run_dir="parts")
    assert steps_of(tmp_path / "parts") == steps_of(tmp_path / "whole")
    export_run(tmp_path / "parts", tmp_path / "out")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.vocab_size == 100


def test_two_ranks_learn_the_same(teach: Callable[..., Collector], tmp_path: Path) -> None:
    teach("--train-iters", "4", "--lr-warmup-iters", "0", run_dir="one")
    teach("--train-iters", "4", "--lr-warmup-iters", "0", "--actor-num-gpus-per-node", "2", run_dir="two")
    for one, two in zip(steps_of(tmp_path / "one"), steps_of(tmp_path / "two"), strict=True):
        assert two["train/loss"] == pytest.approx(one["train/loss"], rel=1e-4)
