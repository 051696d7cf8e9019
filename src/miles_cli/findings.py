"""What ``miles doctor`` finds: one judgement for each thing that a run needs of the machine.

A judgement is made from numbers that are handed in, so that every one of them can be tried on any machine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from miles.config.devices import Gpu

State = Literal["ok", "warning", "problem"]
GIB = 2**30
LEAST_FILES, GOOD_FILES = 1024, 4096
LEAST_SHARED, GOOD_SHARED = 64 * 2**20, 2 * GIB
LEAST_MEMORY, GOOD_MEMORY = GIB, 4 * GIB
LEAST_DISK, GOOD_DISK = GIB // 4, 10 * GIB


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    state: ``ok``; ``warning``, a run may start and still go wrong; ``problem``, a run cannot start.
    remedy: what to do about it; empty where nothing is wrong.
    """

    state: State
    name: str
    text: str
    remedy: str = ""


def judge_package(name: str, wanted: str, found: str | None, *, fits: bool) -> Finding:
    """A package that miles cannot do without; ``wanted`` is its requirement."""
    if found is None:
        return Finding("problem", name, f"not installed; {wanted} is needed", f"pip install '{wanted}'")
    if not fits:
        return Finding("problem", name, f"{found} does not fit {wanted}", f"pip install '{wanted}'")
    return Finding("ok", name, found)


def judge_optional(name: str, found: str | None, tried: str, *, has_gpu: bool) -> Finding:
    """A package that only SGLang engines need; ``tried`` is the version that miles is tested with."""
    remedy = f"pip install {name}=={tried}"
    if found is None and has_gpu:
        return Finding("warning", name, "not installed; engines on these GPUs would be embedded ones", remedy)
    if found is None:
        return Finding("ok", name, "not installed; engines are embedded ones")
    if found != tried:
        return Finding("warning", name, f"{found}, and miles is tested with {tried}", remedy)
    return Finding("ok", name, found)


def judge_sglang_start(error: str, *, has_gpu: bool) -> Finding:
    """Whether an installed sglang would start; ``error`` is what importing its server ends with, empty if it can be imported."""
    if not error:
        return Finding("ok", "sglang server", "can be imported")
    remedy = (
        "pip install -c constraints-sglang.txt '.[sglang]', or pass --engine embedded"
        if has_gpu
        else "pip install --no-deps -r requirements/sglang-cpu.txt; engines are embedded ones unless --engine sglang is passed"
    )
    return Finding("problem" if has_gpu else "warning", "sglang server", f"would not start: {error}", remedy)


def judge_pins(name: str, found: str, wanted: Mapping[str, tuple[str, str | None]]) -> Iterator[Finding]:
    """What sglang asks of packages that miles uses, too: package → its requirement, and the version that does not fit it."""
    for package, (requirement, version) in wanted.items():
        text = f"{name} {found} asks for {requirement}, and {version or 'none'} is installed"
        yield Finding("warning", f"{package} for {name}", text, f"pip install '{requirement}'")


def judge_engine_ports(first: int, free: int, count: int) -> Finding:
    """Ports of the first sglang engine: how many of ``count`` from ``first`` nobody listens on."""
    text = f"{free} of {count} from {first} are free"
    remedy = "End what listens there, or give another --engine-first-port"
    return Finding("ok", "engine ports", text) if free else Finding("problem", "engine ports", text, remedy)


def judge_leftovers(folders: Sequence[str], size: int, processes: Sequence[tuple[int, str]]) -> Iterator[Finding]:
    """What dead runs left: folders of weights with their bytes, and processes by number."""
    if folders:
        text = f"folders of dead runs, {size / GIB:.1f} GiB: {', '.join(folders)}"
        yield Finding("warning", "leftovers", text, f"rm -r {' '.join(folders)}")
    if processes:
        numbers = " ".join(str(number) for number, _ in processes)
        names = ", ".join(f"{number} ({name})" for number, name in processes)
        remedy = f"If they are no servers that you started yourself: kill {numbers}"
        yield Finding("warning", "leftovers", f"processes that lost their parent: {names}", remedy)
    if not folders and not processes:
        yield Finding("ok", "leftovers", "none of dead runs")


def judge_gpus(gpus: Sequence[Gpu] | None, torch_version: str | None) -> Iterator[Finding]:
    """The devices; None where a driver is installed that does not answer."""
    if gpus is None:
        yield Finding("problem", "GPUs", "there is an NVIDIA driver, and nvidia-smi fails", "Run nvidia-smi and see what it says")
        return
    if not gpus:
        yield Finding("ok", "GPUs", "none; runs take place on the CPU")
        return
    if torch_version is not None and torch_version.endswith("+cpu"):
        remedy = "Install torch for CUDA, see https://pytorch.org/get-started"
        yield Finding("problem", "torch for CUDA", f"{torch_version} uses no GPU, and there are {len(gpus)}", remedy)
    for number, gpu in enumerate(gpus):
        text = f"{gpu.name}, {gpu.free / GIB:.0f} of {gpu.total / GIB:.0f} GiB free"
        busy = gpu.free < 0.9 * gpu.total
        remedy = "End what uses it (nvidia-smi), or leave it out with CUDA_VISIBLE_DEVICES" if busy else ""
        yield Finding("warning" if busy else "ok", f"GPU {number}", text, remedy)


def judge_memory(free: int, total: int) -> Finding:
    """Host memory in bytes."""
    remedy = "End other programs, or use a machine with more memory"
    return _by_size("memory", free, f" of {total / GIB:.1f} GiB", LEAST_MEMORY, GOOD_MEMORY, remedy)


def judge_shared_memory(free: int | None) -> Finding:
    """``/dev/shm`` in bytes, where Ray keeps its objects; None where there is none."""
    if free is None:
        return Finding("ok", "shared memory", "there is no /dev/shm; Ray uses files")
    remedy = "Enlarge /dev/shm (in a container: --shm-size=8g)"
    return _by_size("shared memory", free, " in /dev/shm", LEAST_SHARED, GOOD_SHARED, remedy)


def judge_open_files(limit: int) -> Finding:
    """The soft limit of open files."""
    text = f"at most {limit}"
    remedy = "Raise it: ulimit -n 65536"
    if limit < LEAST_FILES:
        return Finding("problem", "open files", text, remedy)
    return Finding("warning", "open files", text, remedy) if limit < GOOD_FILES else Finding("ok", "open files", text)


def judge_ports(error: str) -> Finding:
    """Whether a port of this machine can be bound; ``error`` is empty if so."""
    if error:
        remedy = "Let processes of this machine listen on 127.0.0.1"
        return Finding("problem", "ports", f"none can be bound on 127.0.0.1: {error}", remedy)
    return Finding("ok", "ports", "can be bound on 127.0.0.1")


def judge_ray(address: str | None, variable: str | None, error: str) -> Finding:
    """The cluster that a run would join.

    address: from ``--ray-address``; variable: ``$RAY_ADDRESS``, which Ray follows by itself; error: of connecting.
    """
    if address is not None:
        if error:
            return Finding("problem", "Ray", f"{address} does not answer: {error}", "Start it (ray start --head), or correct it")
        return Finding("ok", "Ray", f"{address} answers")
    if variable:
        remedy = f"Pass --ray-address {variable}, or unset RAY_ADDRESS"
        return Finding("problem", "Ray", f"$RAY_ADDRESS is {variable}, and no --ray-address says so", remedy)
    return Finding("ok", "Ray", "started for each run")


def judge_disk(folder: str, free: int, *, writable: bool) -> Finding:
    """The disk of the run folder, in bytes."""
    if not writable:
        return Finding("problem", "run folder", f"{folder} cannot be written", "Give another --run-dir")
    remedy = "Free some space, or give a --run-dir on another disk"
    return _by_size("run folder", free, f" for {folder}", LEAST_DISK, GOOD_DISK, remedy)


def _by_size(name: str, free: int, rest: str, least: int, good: int, remedy: str) -> Finding:
    text = f"{free / GIB:.1f} GiB free{rest}"
    if free < least:
        return Finding("problem", name, text, remedy)
    return Finding("warning", name, text, remedy) if free < good else Finding("ok", name, text)
