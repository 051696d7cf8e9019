"""Rows are whole, and no step appears twice after a resume."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles.errors import CheckpointError, MilesError
from miles.tracking.metrics_file import MetricsFile, plain, read_rows, set_aside_rows_after

pytestmark = pytest.mark.unit


def write_rows(folder: Path, ids: list[int]) -> None:
    with MetricsFile(folder) as metrics:
        for number in ids:
            metrics.write({"rollout_id": number, "train/loss": number / 3})


@given(st.floats())
def test_plain_is_a_number_json_knows(value: float) -> None:
    written = plain(value)
    assert (written is None) == (not math.isfinite(value))
    assert written is None or written == value


def test_rows_come_back_bit_for_bit(tmp_path: Path) -> None:
    write_rows(tmp_path, [0, 1, 2])
    assert [row["train/loss"] for row in read_rows(tmp_path / "metrics.jsonl")] == [0, 1 / 3, 2 / 3]


def test_a_line_cut_by_a_crash_is_left_out(tmp_path: Path) -> None:
    write_rows(tmp_path, [0, 1])
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert [row["rollout_id"] for row in read_rows(path)] == [0]


def test_a_line_cut_by_a_crash_is_gone_before_the_run_goes_on(tmp_path: Path) -> None:
    write_rows(tmp_path, [0, 1, 2])
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    set_aside_rows_after(tmp_path, 1)
    write_rows(tmp_path, [2])
    assert [row["rollout_id"] for row in read_rows(path)] == [0, 1, 2]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"rollout_id": 0}\n{"roll\n{"rollout_id": 2}\n')
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl:2"):
        read_rows(path)


@given(st.lists(st.integers(-1, 8), max_size=12), st.integers(-1, 8))
def test_rows_after_the_checkpoint_move_and_none_is_lost(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], last: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    write_rows(folder, ids)
    moved = set_aside_rows_after(folder, last)
    kept = [row["rollout_id"] for row in read_rows(folder / "metrics.jsonl")]
    aside = [row["rollout_id"] for row in read_rows(folder / f"metrics.after-{last}.jsonl")]
    assert kept == [number for number in ids if number <= last]
    assert aside == [number for number in ids if number > last] and len(aside) == moved


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with MetricsFile(tmp_path) as metrics, pytest.raises(MilesError, match="cannot write .*No space left"):
        metrics.write({"rollout_id": 0})
