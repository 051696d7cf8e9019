"""What ``config explain`` knows beside the options of a run: a command's own flags, a few variables, and servers' arguments."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from miles.config.server_arguments import MILES_DECIDES, OWNED, SERVERS, Argument, argument_list, plain_name
from miles.config.sources import CONFIG_VARIABLE

Fact = tuple[str, str]
PREFIXES = (".", "-", "_", " ")  # sglang.NAME, --sglang-NAME, sglang NAME
VARIABLES = {
    CONFIG_VARIABLE: (
        "files that count without being named on the command line, above `miles.toml` and below --config",
        (("value", "paths, separated by `:`"), ("flag", "--config FILE, which may be repeated")),
    ),
    "miles.toml": (
        "a file that counts by itself in the working directory, below $MILES_CONFIG and --config",
        (("value", "TOML with options as keys; `miles config init > miles.toml` writes one"),),
    ),
}


@dataclass(frozen=True, slots=True)
class Explained:
    """A thing that can be asked about: its first line, and what there is to know."""

    head: str
    facts: tuple[Fact, ...]


def explained(key: str, given: Mapping[str, str]) -> Explained | None:
    """What is called exactly so; None where nothing is.

    given: server → what the sources pass on to it, as a row shows it (``mem-fraction-static=0.7``).
    """
    plain = key.removeprefix("$")
    if plain in VARIABLES:
        about, facts = VARIABLES[plain]
        return Explained(f"{plain}: {about}", facts)
    return _flag(key) or _argument(key, given)


def nearest_key(key: str) -> str:
    """The key beside the options that is most like this one; empty where none is near."""
    flags: list[str] = [flag for _, param in _own_flags() for flag in param.opts]
    near: list[str] = difflib.get_close_matches(key, [*flags, *VARIABLES], n=1, cutoff=0.75)
    if near:
        return near[0]
    for server, name in _readings(key):
        if name and (found := argument_list(server).nearest(name)):
            return f"{server}.{found}"
    return ""


def _flag(key: str) -> Explained | None:
    found: dict[str, tuple[Any, list[str]]] = {}
    for command, param in _own_flags():
        if key in (*param.opts, *param.secondary_opts):
            found.setdefault(param.help or "", (param, []))[1].append(command)
    if not found:
        return None
    facts: list[Fact] = []
    for about, (_, commands) in found.items():
        facts.append(("command", ", ".join(commands) + (f": {about}" if len(found) > 1 else "")))
    param = next(iter(found.values()))[0]
    facts.append(("value", param.metavar or "switch"))
    if param.default not in (None, False, True):
        facts.append(("default", str(param.default)))
    head = f"{key}: {next(iter(found))}" if len(found) == 1 else f"{key}: means something else in each command"
    return Explained(head, (*facts, ("in files", "not an option of a run: it has no file key and no variable")))


def _own_flags() -> Iterator[tuple[str, Any]]:
    """Flags of every command that are no options of a run."""
    import typer

    from miles_cli.app import app

    yield from _flags_below(typer.main.get_command(app), "miles")


def _flags_below(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield from ((name, param) for param in command.params if param.param_type_name == "option" and not hasattr(param, "option"))
    for word, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _flags_below(below, f"{name} {word}")


def _readings(key: str) -> Iterator[tuple[str, str]]:
    """Server and argument that a key may mean: one by its prefix, or either."""
    plain = key.lstrip("-")
    for server in SERVERS:
        if plain.startswith(tuple(server + mark for mark in PREFIXES)):
            yield server, plain[len(server) + 1 :].lstrip("-")
            return
    yield from ((server, plain) for server in SERVERS)


def _argument(key: str, given: Mapping[str, str]) -> Explained | None:
    found = [(server, argument) for server, name in _readings(key) if (argument := argument_list(server).find(name))]
    if not found:
        return None
    (server, argument), *others = found
    facts = list(_argument_facts(server, argument, given.get(server, "")))
    facts += [("also", f"{other}.{same.name}: an argument of {_whose(other)}") for other, same in others]
    return Explained(f"{server}.{argument.name}: {argument.help or f'an argument of {_whose(server)}'}", tuple(facts))


def _argument_facts(server: str, argument: Argument, given: str) -> Iterator[Fact]:
    yield "whose", _whose(server)
    several = "; several may be given" if argument.many else ""
    yield "value", (", ".join(argument.choices) or argument.kind) + several
    if argument.name in OWNED[server]:
        yield "refused", OWNED[server][argument.name] or MILES_DECIDES
        return
    yield "flag", f"--{server} {argument.name} {'true' if argument.kind == 'flag' else 'VALUE'}"
    yield "file key", f"{argument.name} in [{server}]"
    yield "variable", f"MILES_{server.upper()}, as in {argument.name}=VALUE"
    values = [pair.partition("=")[2] for pair in given.split(", ") if plain_name(pair.partition("=")[0]) == argument.name]
    yield "now", ", ".join(values) if values else f"not given: what {_whose(server)} has by default"


def _whose(server: str) -> str:
    version = argument_list(server).version
    return f"sglang's own server ({version})" if server == "sglang" else f"sglang's router ({version})"
