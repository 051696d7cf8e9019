"""What dead runs left on this machine: folders of weights in shared memory, and processes that lost their parent."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from miles.weights.folder import PREFIX, default_parent

OURS = (
    "miles.engines",
    "miles.rollout.reward_worker",
    "sglang.launch_server",
    "sglang_router.launch_router",
)  # in the command line of a process that a run starts
OF_RAY = "ray::"  # names of Ray's workers, whose parent is its raylet
INIT = 1


def leftover_folders(parent: Path | None = None) -> Iterator[Path]:
    """Folders of weights whose process is gone."""
    for place in {parent} if parent else {default_parent(), Path(tempfile.gettempdir())}:
        for folder in sorted(place.glob(f"{PREFIX}*")):
            owner = folder.name.removeprefix(PREFIX).split("-")[0]
            if folder.is_dir() and not (owner.isdigit() and psutil.pid_exists(int(owner))):
                yield folder


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def leftover_processes() -> Iterator[tuple[int, str]]:
    """Number and name of engines and workers whose parent has ended without them."""
    for process in psutil.process_iter(["pid", "ppid", "name", "cmdline", "status"]):
        told = process.info
        if told["ppid"] != INIT or told["status"] == psutil.STATUS_ZOMBIE:
            continue
        words = told["cmdline"] or []
        name = words[0] if words and words[0].startswith(OF_RAY) else told["name"] or ""
        module = next((word for word in words if word.startswith(OURS)), "")
        if module or name.startswith(OF_RAY):
            yield told["pid"], module or name
