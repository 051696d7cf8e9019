"""What dead runs left on this machine: folders of weights in shared memory, and processes that lost their parent."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from miles.engines.sglang_server.guard import PREFIX as SERVERS
from miles.orphans import orphans_of
from miles.weights.folder import PREFIX as WEIGHTS
from miles.weights.folder import default_parent

OURS = (
    "miles.engines",
    "miles.rollout.reward_worker",
    "sglang.launch_server",
    "sglang_router.launch_router",
)  # in the command line of a process that a run starts
OF_RAY = "ray::"  # names of Ray's workers, whose parent is its raylet
INIT = 1


def leftover_folders(parents: Sequence[Path] = ()) -> Iterator[Path]:
    """Folders of weights and of servers whose process is gone, where runs put them or in ``parents``."""
    places = parents or tuple({default_parent(), Path(tempfile.gettempdir())})
    yield from (folder for place in places for prefix in (WEIGHTS, SERVERS) for folder in orphans_of(prefix, place))


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
