"""What run folders tell of runs that were started before."""

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from miles.config.records import RECORD_FILE, record_text
from miles.config.resolve import resolve
from miles.config.sources import FlagValue, Sources
from miles.config.toml_out import config_toml
from miles.errors import CheckpointError, ConfigError
from miles.tracking.last_start import FILE_NAME, LastStart, note_end, note_start, read_last_start
from miles.tracking.past_runs import PastRun, read_or_say, read_run, runs_under
from miles.tracking.run_folder import RunFolder, RunState, write_state

pytestmark = pytest.mark.unit
TOTAL = 4


@pytest.fixture(scope="module")
def texts() -> tuple[str, str]:
    """The records of a run of four rollouts."""
    found = resolve("train", Sources({"num_rollout": FlagValue(str(TOTAL), "--num-rollout")}, preset="reverse"))
    return config_toml(found), record_text(found)


@pytest.fixture
def run(tmp_path: Path, texts: tuple[str, str]) -> Path:
    """A run folder as it stands after two rollouts, with the checkpoint of the second and half of another."""
    folder = RunFolder(tmp_path / "run", tmp_path / "run" / "checkpoints")
    folder.checkpoint_for(1).mkdir(parents=True)
    folder.checkpoint_for(2).mkdir()
    write_state(folder.checkpoint_for(1), RunState(2, 2))
    folder.point_latest_at(folder.checkpoint_for(1))
    (folder.path / "config.toml").write_text(texts[0])
    (folder.path / RECORD_FILE).write_text(texts[1])
    write_steps(folder.path, 2)
    return folder.path


def write_steps(run: Path, count: int) -> None:
    """Rows of so many steps, each followed by an evaluation."""
    rows: list[dict[str, float]] = []
    for step in range(count):
        rows.append({"rollout_id": step, "perf/step_time": 1.0, "rollout/raw_reward": 0.25 * step})
        rows.append({"rollout_id": step, "eval/reverse": 0.1 * step, "eval/weight_version": step, "eval/reverse/len": 3.0})
    (run / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))


def ended(run: Path, exit_code: int, reason: str = "") -> PastRun:
    assert note_end(run, note_start(run), exit_code, reason) == ""
    return read_run(run)


def test_what_was_trained_measured_and_saved(run: Path) -> None:
    found = read_run(run)
    assert (found.rollouts_done, found.num_rollout) == (2, TOTAL)
    assert found.last_row["rollout/raw_reward"] == 0.25
    assert found.evaluations == {"reverse": (0.0, 0.1)}
    assert [(saved.step, saved.is_whole, saved.is_latest) for saved in found.checkpoints] == [(2, True, True), (3, False, False)]
    assert (found.value("lr"), found.value("gone")) == ("0.0002", "")


def test_how_a_run_stands(run: Path) -> None:
    assert read_run(run).state == "stopped"  # of a version that wrote no last_start.json
    note_start(run)
    assert read_run(run).state == "running"
    assert [ended(run, code).state for code in (0, 130, 143, 1, 3)] == ["stopped", "stopped", "stopped", "failed", "failed"]
    write_steps(run, TOTAL)
    assert [ended(run, code).state for code in (0, 130, 1)] == ["done", "done", "failed"]


def test_a_killed_run_has_died(run: Path) -> None:
    code = "import sys; from pathlib import Path; from miles.tracking.last_start import note_start; note_start(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(run)], check=True, timeout=60)
    assert read_run(run).state == "died"


def test_a_process_that_took_the_number_later_is_another(run: Path) -> None:
    here = note_start(run)
    assert here.is_alive()
    assert not LastStart(here.pid, here.host, "2001-01-01T00:00:00+00:00").is_alive()
    assert LastStart(here.pid, "elsewhere", here.started).is_alive()  # nobody here can know


def test_why_it_failed_is_kept(run: Path) -> None:
    start = ended(run, 1, "engine 0 died\n" * 1000).last_start
    assert start is not None
    assert start.reason.startswith("engine 0 died\n")
    assert len(start.reason) <= 2000
    assert start.ended >= start.started


def test_an_end_that_cannot_be_written_is_told(run: Path) -> None:
    start = note_start(run)
    (run / FILE_NAME).unlink()
    (run / FILE_NAME).mkdir()
    assert "could not be written" in note_end(run, start, 0, "")
    assert read_last_start(run) is None


def test_the_newest_run_comes_first_and_models_are_no_runs(run: Path, tmp_path: Path, texts: tuple[str, str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    older = tmp_path / "older"
    older.mkdir()
    (older / "config.toml").write_text(texts[0])
    (older / RECORD_FILE).write_text(texts[1])
    os.utime(older, (1, 1))
    assert list(runs_under(tmp_path)) == [run, older]
    assert list(runs_under(run)) == [run]
    assert read_run(older).checkpoints == ()


def test_a_damaged_run_is_told(run: Path, tmp_path: Path) -> None:
    (run / "metrics.jsonl").write_text("{\n{}\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl:1"):
        read_run(run)
    assert "metrics.jsonl:1" in str(read_or_say(run))
    with pytest.raises(ConfigError):
        read_run(tmp_path)
