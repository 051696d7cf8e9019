"""Arguments of sglang's own server and router: names and types are checked against lists of the pinned versions.

``argument_lists/*.json`` are written by ``tools/list_server_arguments.py`` from the installed packages, so that a slip is
refused here and not minutes later by a server's parser. What miles itself decides is refused with the option to use.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from miles.config.view import View
from miles.errors import Problem

LISTS = Path(__file__).parent / "argument_lists"
SERVERS = ("sglang", "router")
MILES_DECIDES = "miles gives each server its own"
OWNED: Mapping[str, Mapping[str, str]] = {
    "sglang": {
        "model-path": "Use --hf-checkpoint",
        "tokenizer-path": "Use --hf-checkpoint",
        "tp-size": "Use --rollout-num-gpus-per-engine",
        "context-length": "Use --rollout-max-context-len",
        "max-running-requests": "Use --engine-max-running-requests",
        "dtype": "Use --dtype",
        "device": "Use --device",
        "random-seed": "Use --rollout-seed",
        "enable-deterministic-inference": "Use --deterministic",
        "nnodes": "Use --rollout-num-gpus and --rollout-num-gpus-per-engine",
        **dict.fromkeys(("host", "port", "nccl-port", "dist-init-addr", "node-rank"), ""),
        **dict.fromkeys(("base-gpu-id", "gpu-id-step", "weight-version", "skip-tokenizer-init", "grpc-port"), ""),
    },
    "router": {
        "model-path": "Use --hf-checkpoint",
        "tokenizer-path": "Use --hf-checkpoint",
        "policy": "Use --router-policy",
        **dict.fromkeys(("host", "port", "prometheus-host", "prometheus-port", "worker-urls"), ""),
        **dict.fromkeys(("service-discovery", "pd-disaggregation", "mini-lb"), ""),
    },
}
_SIZE = re.compile(r"\d+|\d+(\.\d+)?[kMGT]|\d+[KMGT]i")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a server: ``kind`` is flag, int, float, str, json or size; ``many`` values may be given.

    help: what the server's own ``--help`` says about it.
    """

    name: str
    kind: str
    choices: tuple[str, ...] = ()
    many: bool = False
    help: str = ""


@dataclass(frozen=True, slots=True)
class ArgumentList:
    """The arguments of one server by name, and other names for them."""

    version: str
    arguments: Mapping[str, Argument]
    aliases: Mapping[str, str]

    def find(self, name: str) -> Argument | None:
        """An argument by its name, with ``-`` or ``_``."""
        plain = plain_name(name)
        return self.arguments.get(self.aliases.get(plain, plain))

    def nearest(self, name: str) -> str:
        """The argument whose name is most like this one; empty where none is near."""
        near = difflib.get_close_matches(plain_name(name), [*self.arguments, *self.aliases], n=1, cutoff=0.7)
        return near[0] if near else ""


def plain_name(name: str) -> str:
    """``--mem_fraction_static`` → ``mem-fraction-static``."""
    return name.lstrip("-").replace("_", "-")


@cache
def argument_list(server: str) -> ArgumentList:
    """The list of ``sglang`` or ``router``."""
    content = json.loads((LISTS / f"{server}.json").read_text())
    arguments = {
        name: Argument(name, told["type"], tuple(told.get("choices", ())), told.get("many", False), told.get("help", ""))
        for name, told in content["arguments"].items()
    }
    return ArgumentList(content["version"], arguments, content["aliases"])


def server_arguments(server: str) -> Callable[[View], Iterator[Problem]]:
    """A check of all arguments that an option passes on to a server."""

    def find(view: View) -> Iterator[Problem]:
        given: dict[str, int] = {}
        for name, value in view[server]:
            given[plain_name(name)] = given.get(plain_name(name), 0) + 1
            for why, remedy in _argument_problems(server, name, value, given[plain_name(name)]):
                yield view.problem(server, f"{name}: {why}", remedy, name)

    return find


def _argument_problems(server: str, name: str, value: str, times: int) -> Iterator[tuple[str, str]]:
    known = argument_list(server)
    argument = known.find(name)
    if argument is None:
        near = known.nearest(name)
        remedy = f"Did you mean {near}?" if near else f"`python -m {_module(server)} --help` lists the arguments"
        yield f"there is no such argument of {_title(server)} {known.version}", remedy
    elif argument.name in OWNED[server]:
        remedy = OWNED[server][argument.name] or f"Leave {name} out"
        yield f"belongs to miles: {'it has an option' if OWNED[server][argument.name] else MILES_DECIDES}", remedy
    elif times == 2 and not argument.many:
        yield "is given twice, and takes one value", "Keep one of them"
    elif not _takes(argument, value):
        listed = ", ".join(argument.choices)
        what = f"is not one of {listed}" if argument.choices else f"is {KIND_WORDS[argument.kind]}"
        yield f"{value!r} {what}", f"Give {name} {GIVE_WORDS[argument.kind] if not listed else 'one of them'}"


KIND_WORDS = {
    "flag": "neither true nor false",
    "int": "not a whole number",
    "float": "not a number",
    "json": "no JSON",
    "size": "no number, nor one with k, M, G, Ki, Mi, Gi",
    "str": "empty",
}
GIVE_WORDS = {
    "flag": "true or false",
    "int": "a whole number",
    "float": "a number",
    "json": "JSON",
    "size": "a number such as 4096 or 4Ki",
    "str": "a value",
}


def _takes(argument: Argument, value: str) -> bool:
    if argument.choices:
        return value in argument.choices
    return _READS[argument.kind](value)


def _reads_with(read: Callable[[str], Any]) -> Callable[[str], bool]:
    def reads(value: str) -> bool:
        try:
            read(value)
        except ValueError:
            return False
        return True

    return reads


_READS: Mapping[str, Callable[[str], bool]] = {
    "flag": lambda value: value in ("true", "false"),
    "int": _reads_with(int),
    "float": _reads_with(float),
    "json": _reads_with(json.loads),
    "size": lambda value: _SIZE.fullmatch(value) is not None,
    "str": lambda value: bool(value.strip()),
}


def _title(server: str) -> str:
    return "sglang" if server == "sglang" else "sglang-router"


def _module(server: str) -> str:
    return "sglang.launch_server" if server == "sglang" else "sglang_router.launch_router"
