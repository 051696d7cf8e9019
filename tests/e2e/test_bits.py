"""Same seed, same bits: sync twice, sync and fully async with bound 0, a resumed run and an uninterrupted one."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Collector, Rows

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
Run = Callable[..., Collector]
SAME = ("--deterministic", "--off-policy-correction", "none", "--lr-decay-style", "constant", "--num-rollout", "8")


def without_times(rows: Rows) -> Rows:
    """Rows without what depends on the clock."""
    return [{key: value for key, value in row.items() if not key.startswith("perf/")} for row in rows]


def shared(rows: Rows, other: Rows) -> tuple[Rows, Rows]:
    """The keys that both write, but for the state of a queue."""

    def cut(these: Rows, those: Rows) -> Rows:
        keys = [set(row) & set(match) for row, match in zip(these, those, strict=True)]
        return [{key: row[key] for key in wanted} for row, wanted in zip(these, keys, strict=True)]

    return cut(rows, other), cut(other, rows)


PPO = ("--advantage-estimator", "ppo", "--num-critic-only-steps", "2")
TWO_RANKS = ("--actor-num-gpus-per-node", "2", "--dtype", "bfloat16")


@pytest.mark.parametrize("more", [(), (*PPO, *TWO_RANKS)], ids=["plain", "ppo on two ranks in bfloat16"])
def test_two_sync_runs_agree_bit_for_bit(run_here: Run, tmp_path: Path, more: tuple[str, ...]) -> None:
    first, second = run_here("train", *SAME, *more, run_dir="a"), run_here("train", *SAME, *more, run_dir="b")
    assert without_times(first.rows) == without_times(second.rows)
    lines = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert without_times([json.loads(line) for line in lines]) == without_times(first.rows)


def test_how_weights_travel_and_who_shares_devices_changes_nothing(run_here: Run) -> None:
    short, in_buckets = (*SAME[:-1], "4"), ("--update-weight-buffer-size", "300000", "--check-weight-update")
    plain = run_here("train", *short, run_dir="plain")
    for way in ("tensor", "broadcast"):
        other = run_here("train", *short, "--update-weight-transfer-mode", way, *in_buckets, run_dir=way)
        assert without_times(other.rows) == without_times(plain.rows), way
    shared = run_here("train", *short, "--colocate", "--check-weight-update", run_dir="shared")
    assert without_times(shared.rows) == without_times(plain.rows)


def test_adapters_alone_are_the_merged_weights(run_here: Run) -> None:
    short = (*SAME[:-1], "4", "--lora-rank", "4", "--lr", "2e-3")
    merged = run_here("train", *short, run_dir="merged")
    alone = run_here("train", *short, "--lora-publish", "adapter", "--check-weight-update", run_dir="alone")
    assert without_times(alone.rows) == without_times(merged.rows)
    sizes = [max(row.get("perf/update_weights_bytes", 0) for row in run.rows) for run in (alone, merged)]
    assert 0 < sizes[0] < sizes[1] / 4


def test_fully_async_with_bound_zero_is_sync(run_here: Run) -> None:
    sync = run_here("train", *SAME, run_dir="sync")
    bound = ("--fully-async", "--max-weight-staleness", "0", "--update-weights-interval", "1")
    exact = run_here("train-async", *bound, *SAME, run_dir="async")
    one, other = shared(without_times(sync.rows), without_times(exact.rows))
    assert one == other
    assert "train/grad_norm" in one[1] and "rollout/raw_reward" in one[1]


@pytest.mark.parametrize("more", [(), PPO], ids=["plain", "ppo"])
def test_a_resumed_sync_run_is_the_uninterrupted_one(run_here: Run, tmp_path: Path, more: tuple[str, ...]) -> None:
    whole = run_here("train", *SAME, *more, run_dir="whole")
    run_here("train", *SAME[:-1], "4", *more, run_dir="halves")
    run_here("train", *SAME, *more, run_dir="halves")
    rows = [json.loads(line) for line in (tmp_path / "halves" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in without_times(rows) if "train/loss" in row]
    assert steps == [row for row in without_times(whole.rows) if "train/loss" in row]


def test_config_toml_runs_the_same_again(run_here: Run, start_miles: Callable[..., object], tmp_path: Path) -> None:
    first = run_here("train", *SAME[:-1], "3", run_dir="first")
    again = start_miles("train", "--config", str(tmp_path / "first" / "config.toml"), run_dir="again")
    assert again.wait() == 0, again.output[-3000:]  # type: ignore[attr-defined]
    assert without_times(again.rows) == without_times(first.rows)  # type: ignore[attr-defined]
