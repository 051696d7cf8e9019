"""Where the output of a run's processes goes: one file each in the run folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any


def send_output_to(_actor: object, path: str) -> int:
    """Runs inside an actor: its standard output and error go to ``path`` from now on. Returns its process id."""
    descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    return os.getpid()


def log_output(actor: Any, path: Path) -> Any:
    """Ask a new actor to write to ``path``; returns Ray's reference to its process id."""
    return actor.__ray_call__.remote(send_output_to, str(path))


@contextmanager
def stray_output_to(path: Path) -> Iterator[None]:
    """What libraries print in this process goes to a file: the terminal belongs to the reporter, which holds its own stream."""
    with path.open("a", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        yield
