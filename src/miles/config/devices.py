"""The memory of this machine's devices, asked without torch: GPUs of nvidia-smi, and what the host lets a process have."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from miles.config.facts import has_nvidia_driver

QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits")
TIMEOUT_SECONDS = 10.0
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA device; memory in bytes."""

    name: str
    total: int
    free: int


def find_gpus(environ: Mapping[str, str]) -> list[Gpu] | None:
    """The NVIDIA devices that ``CUDA_VISIBLE_DEVICES`` leaves; none without a driver, None if the driver does not answer."""
    if not has_nvidia_driver(environ):
        return []
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True)
        rows = [line.rsplit(",", 2) for line in done.stdout.splitlines() if line.strip()]
        gpus = [Gpu(name.strip(), int(total) * 2**20, int(free) * 2**20) for name, total, free in rows]
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return _visible(gpus, environ.get("CUDA_VISIBLE_DEVICES"))


def host_memory(limit_file: Path = CGROUP_LIMIT) -> int:
    """Bytes of main memory, or what the container is allowed of it."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = limit_file.read_text().strip()
    except OSError:  # no such control group: there is no limit
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def _visible(gpus: list[Gpu], named: str | None) -> list[Gpu]:
    """Those that a list of numbers names; all where it names them otherwise (by UUID)."""
    numbers = [part.strip() for part in named.split(",")] if named else []
    if not numbers or not all(number.isdigit() for number in numbers):
        return gpus
    return [gpus[int(number)] for number in numbers if int(number) < len(gpus)]
