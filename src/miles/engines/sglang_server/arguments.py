"""The command line and environment of one sglang server: what miles decides, and what the user adds."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from miles.engines.sglang_cpu import PLATFORM

SPARE_TOKENS = 2  # sglang ends an answer two tokens before its context is full
CPU_CACHE_TOKENS = 65536  # beyond it the slots share: plain CPUs have no use for a larger cache


@dataclass(frozen=True, slots=True)
class SglangOptions:
    """One server.

    context_len: longest prompt and answer together, in tokens.
    max_running_requests: requests decoded together.
    num_gpus: devices of the server (tensor parallel); ignored on a CPU.
    first_port: of the range of engine 0; the next engine's is 100 higher.
    pauses_in_place: updates find requests in the middle; without an overlapped schedule, which would have sampled one more token
        from the old weights and then say that it came from the new ones.
    host: address to listen at; None is the address of the node in its Ray cluster.
    shared_devices: GPUs that it shares with the policy; empty where Ray gave it its own.
    releases_memory: it will be asked to give its memory back for a while.
    adapter_rank: of the LoRA adapter that it will be given; 0 where it will get none.
    adapter_targets: the ends of the names of the layers that have one.
    extra: server arguments of the user by name without dashes (``mem-fraction-static``); they replace ours. ``true`` sets a
        flag, ``false`` leaves it out, and a name given several times has several values.
    """

    model_path: str
    device: Literal["cuda", "cpu"]
    context_len: int
    max_running_requests: int = 128
    num_gpus: int = 1
    dtype: str = "float32"
    deterministic: bool = False
    pauses_in_place: bool = False
    seed: int = 0
    host: str | None = "127.0.0.1"
    first_port: int = 15000
    weight_version: str = "0"
    shared_devices: tuple[str, ...] = ()
    releases_memory: bool = False
    adapter_rank: int = 0
    adapter_targets: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()


def server_command(options: SglangOptions, host: str, port: int) -> list[str]:
    """The command that serves ``options`` at ``host`` and ``port``."""
    arguments: dict[str, list[str]] = {
        "model-path": [options.model_path],
        "host": [host],
        "port": [str(port)],
        "dtype": [options.dtype],
        "context-length": [str(options.context_len + SPARE_TOKENS)],
        "max-running-requests": [str(options.max_running_requests)],
        "random-seed": [str(options.seed)],
        "weight-version": [options.weight_version],
        "log-level-http": ["warning"],
        "skip-server-warmup": ["true"],
        "disable-overlap-schedule": ["true" if options.device == "cpu" or options.pauses_in_place else "false"],
        **(cpu_arguments(options) if options.device == "cpu" else gpu_arguments(options)),
        **(adapter_arguments(options) if options.adapter_rank else {}),
    }
    return [sys.executable, "-m", "sglang.launch_server", *as_words(arguments | by_name(options.extra))]


def adapter_arguments(options: SglangOptions) -> dict[str, list[str]]:
    """Room for one adapter beside requests without any."""
    return {
        "enable-lora": ["true"],
        "max-lora-rank": [str(options.adapter_rank)],
        "max-loras-per-batch": ["2"],
        "lora-target-modules": list(options.adapter_targets),
    }


def cpu_arguments(options: SglangOptions) -> dict[str, list[str]]:
    """Everything that would need sgl_kernel or CUDA is off, and an idle scheduler sleeps instead of holding a core."""
    tokens = min(options.max_running_requests * (options.context_len + SPARE_TOKENS), CPU_CACHE_TOKENS)
    return {
        "device": ["cpu"],
        "attention-backend": ["torch_native"],
        "sampling-backend": ["pytorch"],
        "grammar-backend": ["none"],
        "cuda-graph-backend-decode": ["disabled"],
        "cuda-graph-backend-prefill": ["disabled"],
        "mem-fraction-static": ["0.3"],
        "max-total-tokens": [str(max(tokens, options.context_len + SPARE_TOKENS))],
        "sleep-on-idle": ["true"],
    }


def gpu_arguments(options: SglangOptions) -> dict[str, list[str]]:
    """Ray shows the actor its own devices alone, so the first one is number 0."""
    arguments = {"device": ["cuda"], "tp-size": [str(options.num_gpus)]}
    switches = {"enable-deterministic-inference": options.deterministic, "enable-memory-saver": options.releases_memory}
    return arguments | {name: ["true"] for name, is_on in switches.items() if is_on}


def server_environment(options: SglangOptions, inherited: Mapping[str, str]) -> dict[str, str]:
    """The server's environment: ``inherited``, and what sglang reads from nowhere else."""
    environment = dict(inherited) | {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1", "PYTHONUNBUFFERED": "1"}
    if options.device == "cpu":
        environment |= {"SGLANG_PLATFORM": PLATFORM, "OMP_NUM_THREADS": "1"}
        environment.pop("SGLANG_USE_CPU_ENGINE", None)
    if options.shared_devices:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(options.shared_devices)
    return environment


def by_name(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Pairs of a name and a value, gathered; ``_`` and ``-`` in names are the same."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name.lstrip("-").replace("_", "-"), []).append(value)
    return values


def as_words(arguments: Mapping[str, Sequence[str]]) -> list[str]:
    """``{"a": ["1"], "b": ["true"], "c": ["false"]}`` as ``--a 1 --b``."""
    words: list[str] = []
    for name, values in arguments.items():
        if list(values) != ["false"]:
            words.append(f"--{name}")
            words += [] if list(values) == ["true"] else values
    return words
