"""How the next start finds what a run left behind."""

from pathlib import Path

import orjson
import pytest

from miles.clock import WallClock
from miles.errors import CheckpointError, ConfigError, MachineError
from miles.tracking.run_folder import (
    RunState,
    lock_run_folder,
    open_run_folder,
    read_state,
    refuse_checkpoints_of_another_run,
    write_state,
)
from miles.tracking.trace import Trace

pytestmark = pytest.mark.unit


def test_each_start_gets_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = open_run_folder(None, None, "train"), open_run_folder(None, None, "train")
    assert first.path != second.path and first.path.parent == second.path.parent == tmp_path / "runs"


def test_latest_moves_only_to_what_is_there(tmp_path: Path) -> None:
    folder = open_run_folder(tmp_path / "run", None, "train")
    assert folder.latest() is None
    checkpoint = folder.checkpoint_for(3)
    checkpoint.mkdir()
    folder.point_latest_at(checkpoint)
    assert folder.latest() == checkpoint
    checkpoint.rmdir()
    with pytest.raises(CheckpointError, match="rollout-000003, which is gone"):
        folder.latest()


def test_a_new_run_does_not_go_on_from_checkpoints_of_another(tmp_path: Path) -> None:
    first = open_run_folder(tmp_path / "one", tmp_path / "saved", "train")
    refuse_checkpoints_of_another_run(first)
    (first.path / "config.toml").write_text("")
    first.checkpoint_for(0).mkdir()
    first.point_latest_at(first.checkpoint_for(0))
    refuse_checkpoints_of_another_run(first)
    with pytest.raises(ConfigError, match="save = .*holds the checkpoints of another run"):
        refuse_checkpoints_of_another_run(open_run_folder(tmp_path / "two", tmp_path / "saved", "train"))


def test_a_full_disk_ends_the_trace_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "trace.json").symlink_to("/dev/full")
    trace = Trace(tmp_path / "trace.json", WallClock())
    with trace.span("policy", "step 0"):
        pass
    trace.close()
    assert "No space left" in trace.problem


def test_state_comes_back(tmp_path: Path) -> None:
    state = RunState(7, 3, {"waiting": [1, 2]})
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rollouts": 1}'])
def test_damaged_state_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"state\.json cannot be read"):
        read_state(tmp_path)


def test_two_processes_cannot_share_a_folder(tmp_path: Path) -> None:
    folder = open_run_folder(tmp_path / "run", None, "train")
    lock_run_folder(folder)
    with pytest.raises(MachineError, match="in use by another miles process"):
        lock_run_folder(folder)


def test_a_path_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="run_dir"):
        open_run_folder(tmp_path / "file" / "run", None, "train")


def test_trace_of_a_killed_run_can_be_read(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.json", WallClock())
    with pytest.raises(ValueError, match="boom"), trace.span("policy", "step 0", version=2):
        raise ValueError("boom")
    trace.close()
    events = orjson.loads((tmp_path / "trace.json").read_bytes().rstrip(b",\n") + b"]")
    spans = [event for event in events if event["ph"] == "X"]
    assert [(span["name"], span["args"]) for span in spans] == [("step 0", {"version": 2})]
    assert spans[0]["dur"] >= 0
