"""Temporary folders that carry the id of the process they belong to, so that others can clear up after one that was killed."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil


def orphans_of(prefix: str, parent: Path) -> Iterator[Path]:
    """The folders ``<prefix><process id>-…`` in ``parent`` whose process is gone."""
    for folder in sorted(parent.glob(f"{prefix}*-*")):
        owner = folder.name.removeprefix(prefix).split("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            yield folder


def remove_orphans_of(prefix: str, parent: Path) -> None:
    """Remove those folders."""
    for folder in orphans_of(prefix, parent):
        shutil.rmtree(folder, ignore_errors=True)
