"""The folder in which weights travel to the engines: shared memory where the system has it, gone with the run."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from miles.orphans import remove_orphans_of

PREFIX = "miles-weights-"


@contextmanager
def weights_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder that carries this process's id; removes those whose process was killed before it could."""
    parent = parent or default_parent()
    remove_orphans_of(PREFIX, parent)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", dir=parent) as folder:
        yield Path(folder)


def default_parent() -> Path:
    """Shared memory, or the system's temporary folder."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else Path(tempfile.gettempdir())
