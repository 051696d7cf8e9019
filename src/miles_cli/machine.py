"""Looks at this machine for ``miles doctor``; starts nothing, and imports neither torch nor Ray."""

import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from miles.config.devices import find_gpus
from miles.config.options.engine import EngineOptions
from miles.config.server_arguments import argument_list
from miles_cli.findings import (
    Finding,
    judge_disk,
    judge_engine_ports,
    judge_gpus,
    judge_leftovers,
    judge_memory,
    judge_open_files,
    judge_optional,
    judge_package,
    judge_pins,
    judge_ports,
    judge_ray,
    judge_sglang_start,
    judge_shared_memory,
)

MAIN_PACKAGES = frozenset({"torch", "ray", "transformers"})
FOR_SGLANG = {"sglang": "sglang", "sglang-router": "router"}  # package → whose arguments are known
SHARED_MEMORY = Path("/dev/shm")
TIMEOUT_SECONDS = 10.0
IMPORT_SECONDS = 120.0
FIRST_PORT = EngineOptions.model_fields["engine_first_port"].default


def look(run_dir: Path, ray_address: str | None, *, tries_sglang: bool = True) -> Iterator[Finding]:
    """Everything that a run needs, one finding each.

    tries_sglang: import an installed sglang in a process of its own, which takes some seconds.
    """
    import psutil

    from miles_cli.leftovers import leftover_folders, leftover_processes, size_of

    yield Finding("ok", "Python", platform.python_version())
    yield from packages()
    gpus = find_gpus(os.environ)
    for name, server in FOR_SGLANG.items():
        yield judge_optional(name, version_of(name), argument_list(server).version, has_gpu=bool(gpus))
    if version_of("sglang") is not None:
        yield from sglang_findings(has_gpu=bool(gpus), tries=tries_sglang)
    yield from judge_gpus(gpus, version_of("torch"))
    yield Finding("ok", "CPU cores", str(len(os.sched_getaffinity(0))))
    memory = psutil.virtual_memory()
    yield judge_memory(memory.available, memory.total)
    yield judge_shared_memory(shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None)
    yield judge_open_files(_no_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    yield judge_ports(error_of_binding())
    yield judge_ray(ray_address, os.environ.get("RAY_ADDRESS"), error_of_connecting(ray_address) if ray_address else "")
    left = list(leftover_folders())
    yield from judge_leftovers([str(folder) for folder in left], sum(map(size_of, left)), list(leftover_processes()))
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


def sglang_findings(*, has_gpu: bool, tries: bool) -> Iterator[Finding]:
    """Whether an installed sglang would start here, what it asks of other packages, and the ports that it would use."""
    from miles.engines.sglang_server.ports import PORTS_PER_ENGINE, port_range

    if tries:
        yield judge_sglang_start(error_of_importing_sglang(has_gpu=has_gpu), has_gpu=has_gpu)
    if has_gpu:  # on a CPU it is installed without what it asks for
        yield from judge_pins("sglang", version_of("sglang") or "", misfits("sglang"))
    ports = port_range(0, FIRST_PORT)
    yield judge_engine_ports(FIRST_PORT, sum(map(_is_free, ports)), PORTS_PER_ENGINE)


def misfits(package: str) -> dict[str, tuple[str, str | None]]:
    """Packages of ours that do not have the version that another one asks for."""
    from packaging.requirements import Requirement

    found = {}
    for text in metadata.requires(package) or ():
        wanted = Requirement(text)
        applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        version = version_of(wanted.name)
        if applies and wanted.name in MAIN_PACKAGES and not (version and wanted.specifier.contains(version, prereleases=True)):
            found[wanted.name] = (f"{wanted.name}{wanted.specifier}", version)
    return found


def error_of_importing_sglang(*, has_gpu: bool) -> str:
    """The last words of an import of sglang's server, as an engine would make it; empty if it can be imported."""
    from miles.engines.sglang_server.arguments import SglangOptions, server_environment

    options = SglangOptions("", "cuda" if has_gpu else "cpu", context_len=1)
    command = [sys.executable, "-c", "import sglang.launch_server, sglang.srt.entrypoints.http_server"]
    environment = server_environment(options, os.environ)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=IMPORT_SECONDS,
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"importing it takes more than {IMPORT_SECONDS:.0f} s"
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else ""


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


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
