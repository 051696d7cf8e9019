"""Folders that appear whole or not at all: written under another name, then renamed."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_ASIDE = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)\.(?P<kind>part|old)")


@contextmanager
def written_aside(folder: Path, *, durable: bool) -> Iterator[Path]:
    """Yield an empty folder to fill; it takes the place of ``folder`` when the block ends well, and is removed when it does not.

    durable: everything is on the disk before the rename, so that the old folder survives a crash or a full disk.

    Raises:
        OSError: the folder cannot be made or renamed; what stood at ``folder`` is still there.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = folder.parent / f".{folder.name}.{os.getpid()}.part"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        if durable:
            flush_tree(aside)
        _take_place(aside, folder)
        if durable:
            _flush(folder.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _take_place(aside: Path, folder: Path) -> None:
    """Rename ``aside`` to ``folder``; what was there is removed only afterwards."""
    if not folder.exists():
        aside.rename(folder)
        return
    old = folder.parent / f".{folder.name}.{os.getpid()}.old"
    shutil.rmtree(old, ignore_errors=True)
    folder.rename(old)
    aside.rename(folder)
    shutil.rmtree(old)


def remove_unfinished(parent: Path) -> None:
    """Remove what processes that are gone had not finished; a folder that was about to be replaced gets its name back.

    Raises:
        OSError: ``parent`` cannot be written.
    """
    for path in parent.glob(".*.*"):
        found = _ASIDE.fullmatch(path.name)
        if found is None or psutil.pid_exists(int(found["pid"])):
            continue
        if found["kind"] == "old" and not (parent / found["name"]).exists():
            path.rename(parent / found["name"])
        else:
            shutil.rmtree(path)


def flush_tree(folder: Path) -> None:
    """Have every file and folder below written to the disk."""
    for path in sorted(folder.rglob("*")):
        _flush(path)
    _flush(folder)


def _flush(path: Path) -> None:
    """Wait until one file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
