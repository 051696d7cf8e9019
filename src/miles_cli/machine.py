"""Looks at this machine for ``miles doctor``; starts nothing, and imports neither torch nor Ray."""

import os
import platform
import resource
import shutil
import socket
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from miles.config.devices import find_gpus
from miles.config.server_arguments import argument_list
from miles_cli.findings import (
    Finding,
    judge_disk,
    judge_gpus,
    judge_memory,
    judge_open_files,
    judge_optional,
    judge_package,
    judge_ports,
    judge_ray,
    judge_shared_memory,
)

MAIN_PACKAGES = frozenset({"torch", "ray", "transformers"})
FOR_SGLANG = {"sglang": "sglang", "sglang-router": "router"}  # package → whose arguments are known
SHARED_MEMORY = Path("/dev/shm")
TIMEOUT_SECONDS = 10.0


def look(run_dir: Path, ray_address: str | None) -> Iterator[Finding]:
    """Everything that a run needs, one finding each."""
    import psutil

    yield Finding("ok", "Python", platform.python_version())
    yield from packages()
    gpus = find_gpus(os.environ)
    for name, server in FOR_SGLANG.items():
        yield judge_optional(name, version_of(name), argument_list(server).version, has_gpu=bool(gpus))
    yield from judge_gpus(gpus, version_of("torch"))
    yield Finding("ok", "CPU cores", str(len(os.sched_getaffinity(0))))
    memory = psutil.virtual_memory()
    yield judge_memory(memory.available, memory.total)
    yield judge_shared_memory(shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None)
    yield judge_open_files(_no_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    yield judge_ports(error_of_binding())
    yield judge_ray(ray_address, os.environ.get("RAY_ADDRESS"), error_of_connecting(ray_address) if ray_address else "")
    folder = _existing(run_dir.absolute())
    yield judge_disk(str(run_dir), shutil.disk_usage(folder).free, writable=os.access(folder, os.W_OK))


def packages() -> Iterator[Finding]:
    """The main packages that miles requires, and any other that is missing or too old."""
    from packaging.requirements import Requirement

    for text in metadata.requires("miles") or ():
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        found = version_of(wanted.name)
        fits = found is not None and wanted.specifier.contains(found, prereleases=True)
        if not fits or wanted.name in MAIN_PACKAGES:
            yield judge_package(wanted.name, f"{wanted.name}{wanted.specifier}", found, fits=fits)


def version_of(name: str) -> str | None:
    """The installed version of a package, None where it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def error_of_binding() -> str:
    """Why no port can be bound; empty if one can."""
    try:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
    except OSError as error:
        return str(error)
    return ""


def error_of_connecting(address: str) -> str:
    """Why a Ray address cannot be reached; empty if it can, or if it is for Ray to find."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address in ("auto", "local"):
        return ""
    if not host or not port.isdigit():
        return "it is no HOST:PORT"
    try:
        socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS).close()
    except (OSError, OverflowError) as error:
        return str(error)
    return ""


def _existing(path: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _no_limit(limit: int) -> int:
    return 2**63 - 1 if limit == resource.RLIM_INFINITY else limit
