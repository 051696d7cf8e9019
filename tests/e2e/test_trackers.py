"""The rows of whole runs in TensorBoard, and what lies on disk for Weights & Biases and trackio, read back from their files."""

import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from miles.tracking.metrics_file import read_rows
from miles.tracking.trackers import open_trackers
from tests.tracking.test_trackers import shown, tracked

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
HEADER_BYTES, PIECE = 7, struct.Struct("<IHB")  # of the file; checksum, length and kind of a piece of a record
WHOLE = 1


def test_a_resumed_run_is_in_tensorboard_as_in_its_metrics(run_here, tmp_path) -> None:
    for length in ("3", "5"):
        run_here("train", "--num-rollout", length, "--save-interval", "2", "--use-tensorboard")
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "train/loss" in row]
    assert len(rows) == 5
    assert shown(tmp_path / "run") == [(row["rollout_id"] + 1, pytest.approx(row["train/loss"], rel=1e-6)) for row in rows]


def history(folder: Path) -> Iterator[dict[str, float]]:
    """Rows that lie in the folder of Weights & Biases, in order."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        data, at = path.read_bytes(), HEADER_BYTES
        while at < len(data):
            _, length, kind = PIECE.unpack_from(data, at)
            assert kind == WHOLE
            at += PIECE.size
            record = Record.FromString(data[at : at + length])
            at += length
            if record.HasField("history"):
                yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}


def test_weights_and_biases_goes_on_with_its_run_and_keeps_no_secret(tmp_path, monkeypatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setattr(sys, "argv", ["miles", "train", "--use-wandb", "--wandb-key", "s3cr3t" * 7])
    options = {"use_wandb": True, "wandb_mode": "offline", "wandb_key": "s3cr3t" * 7}
    for first in (0, 2):
        folders = len(list(tmp_path.glob("wandb/offline-run-*")))
        with open_trackers(tracked(tmp_path, first, **options), print) as opened:
            for number in (first, first + 1):
                opened.log({"rollout_id": number, "train/loss": number / 2})
        second = int(time.time())
        while int(time.time()) == second:  # the library names a folder by the second of its start
            time.sleep(0.01)
        assert len(list(tmp_path.glob("wandb/offline-run-*"))) == folders + 1
    assert [(row["rollout_id"], row["train/loss"]) for row in history(tmp_path)] == [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.5)]
    identity = (tmp_path / "wandb_id").read_text()
    assert len(list(tmp_path.glob(f"wandb/offline-run-*-{identity}"))) == 2
    assert not any(b"s3cr3t" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_trackio_takes_the_rows(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "database"))
    pytest.importorskip("trackio", reason="trackio is not installed: it wants an older pillow than the pins of sglang")
    with open_trackers(tracked(tmp_path, use_trackio=True, tracking_project="tried"), print) as opened:
        opened.log({"rollout_id": 0, "train/loss": 0.5})
    from trackio.sqlite_storage import SQLiteStorage

    name = f"{tmp_path.name}-{(tmp_path / 'trackio_id').read_text()}"
    assert [row["train/loss"] for row in SQLiteStorage.get_logs("tried", name)] == [0.5]
