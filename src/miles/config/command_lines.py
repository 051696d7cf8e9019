"""The command line that a user should have typed, for remedies that can be copied."""

import shlex
from collections.abc import Collection, Sequence
from typing import Any

from miles.config.reading import MASK, names_secret, written
from miles.config.registry import Option, find_option, selector_of
from miles.config.sources import FlagValue, Sources


def command_line(command: str, sources: Sources, *, without: Collection[str] = (), plus: Sequence[str] = ()) -> str:
    """``miles <command>`` with the preset, files and flags of ``sources`` that this command has.

    without: option names to leave out.
    plus: flags to add unless they are there already.
    """
    words = ["miles", command]
    if sources.preset is not None:
        words += ["--preset", sources.preset]
    for file in sources.config_files:
        words += ["--config", str(file)]
    words += [flag for flag in plus if flag not in {given.text for given in sources.flags.values()}]
    kept = [(option, given) for name, given in sources.flags.items() if (option := find_option(name))]
    kept = [(option, given) for option, given in kept if option.name not in without]
    switches = {flag.removeprefix("--").replace("-", "_") for flag in plus} | {option.name for option, _ in kept}
    for option, given in kept:
        if _counts(option, command, switches):
            words += _words(option, given)
    return shlex.join(words)


def _counts(option: Option, command: str, given: Collection[str]) -> bool:
    """Whether the command has the option, in the variant that the switches among the given options choose."""
    chosen = {
        owner.section
        for name in given
        if (other := find_option(name))
        for owner in other.owners
        if owner.command == command and selector_of(owner.option_set) == name
    }
    owners = [owner for owner in option.owners if owner.command == command]
    return any(owner.section not in chosen or selector_of(owner.option_set) in given for owner in owners)


def needed_selector(option: Option, command: str) -> str:
    """The flag without which an option does not count in a command (``--fully-async``); empty for none."""
    owner = next(owner for owner in option.owners if owner.command == command)
    selector = selector_of(owner.option_set)
    found = find_option(selector) if selector else None
    return found.flag if found and found.name != option.name else ""


def _words(option: Option, given: FlagValue) -> list[str]:
    if option.shape.scalar is bool and not isinstance(given.value, str):
        return [given.text]
    if option.meta.secret:
        return [given.text, MASK]
    if option.shape.pairs and isinstance(given.value, (list, tuple)):
        pairs = ((name, MASK if names_secret(str(name)) else value) for name, value in given.value)
        return [word for pair in pairs for word in (given.text, *map(str, pair))]
    values: Sequence[Any] = given.value if isinstance(given.value, (list, tuple)) else [given.value]
    return [word for value in values for word in (given.text, written(value))]
