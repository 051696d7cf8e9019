"""Temporary folders that carry the id of the process they belong to, so that others can clear up after one that was killed."""

import shutil
from pathlib import Path

import psutil


def remove_orphans_of(prefix: str, parent: Path) -> None:
    """Remove the folders ``<prefix><process id>-…`` in ``parent`` whose process is gone."""
    for folder in parent.glob(f"{prefix}*-*"):
        owner = folder.name.removeprefix(prefix).split("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)
