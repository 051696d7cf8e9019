"""Starting again in a run folder: what is compared, what is told beforehand, and what damaged folders lead to."""

from pathlib import Path

import pytest

from miles.config.resolution import Resolution
from miles.config.resolve import resolve
from miles.config.sources import FlagValue, Sources
from miles.config.toml_out import config_toml
from miles.errors import CheckpointError, ConfigError
from miles.loops.resume import find_start, look_ahead
from miles.tracking.run_folder import RunFolder
from tests.builders import stopped_run

pytestmark = pytest.mark.unit


def resolution(folder: Path, *flags: str, **values: str) -> Resolution:
    typed = {name: FlagValue(value, "--" + name.replace("_", "-")) for name, value in values.items()}
    typed |= {name: FlagValue(True, "--" + name.replace("_", "-")) for name in flags}
    return resolve("train", Sources({**typed, "run_dir": FlagValue(str(folder), "--run-dir")}, preset="reverse", cwd=folder))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that was stopped after rollout 6."""
    run = stopped_run(tmp_path)
    (tmp_path / "config.toml").write_text(config_toml(resolution(tmp_path)))
    return run


def test_a_folder_that_holds_no_run_begins_anew(tmp_path: Path) -> None:
    again = resolution(tmp_path, lr="1")
    assert find_start(RunFolder(tmp_path, tmp_path / "checkpoints"), again).checkpoint is None
    assert look_ahead(again) == ()


def test_what_a_start_would_do_is_told_beforehand(folder: RunFolder) -> None:
    head = "resumes after rollout 6 from rollout-000006"
    assert look_ahead(resolution(folder.path)) == (head, "nothing is changed")
    assert look_ahead(resolution(folder.path, "accept_changes", num_rollout="200", lr="0.5")) == (
        head,
        "num_rollout: 150 → 200  (safe)",
        "lr: 0.0002 → 0.5  (changes the course of the run)",
    )


def test_changes_are_refused_before_anything_starts(folder: RunFolder) -> None:
    wanted = resolution(folder.path, n_samples_per_prompt="4", lr="0.5")
    for look in (look_ahead, lambda resolution: find_start(folder, resolution)):
        with pytest.raises(ConfigError) as caught:
            look(wanted)
        assert [problem.option for problem in caught.value.problems] == ["n_samples_per_prompt", "lr"]


@pytest.mark.parametrize("damage", ["", "a = ["])
def test_a_run_whose_record_is_gone_is_not_guessed_at(folder: RunFolder, damage: str) -> None:
    record = folder.path / "config.toml"
    if damage:
        record.write_text(damage)
    else:
        record.unlink()
    with pytest.raises(CheckpointError, match=r"config\.toml, which says what the run was started with, cannot be read"):
        look_ahead(resolution(folder.path))


def test_a_pointer_to_nothing_is_named(folder: RunFolder) -> None:
    (folder.checkpoints / "latest").write_text("rollout-000009\n")
    with pytest.raises(CheckpointError, match="rollout-000009"):
        look_ahead(resolution(folder.path))
