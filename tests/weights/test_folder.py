"""Weights leave nothing behind, not even after a kill."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from miles.weights.folder import PREFIX, weights_folder

pytestmark = pytest.mark.unit


def test_the_folder_is_gone_with_the_run(tmp_path: Path) -> None:
    with weights_folder(tmp_path) as folder:
        (folder / "version-1").mkdir()
        assert folder.name.startswith(f"{PREFIX}{os.getpid()}-")
    assert list(tmp_path.iterdir()) == []


def test_folders_of_dead_processes_are_removed_and_of_living_ones_kept(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait(20)
    dead, living, other = (tmp_path / f"{PREFIX}{child.pid}-x", tmp_path / f"{PREFIX}{os.getpid()}-y", tmp_path / "other")
    for folder in (dead, living, other):
        folder.mkdir()
    with weights_folder(tmp_path):
        assert not dead.exists()
        assert living.exists() and other.exists()
