"""Configuration files and presets: flat option names, and tables that count only for one command or variant.

lr = 1e-5                                every command
[train-async]                            only `miles train-async`
[train-async.fully-async]                only `miles train-async --fully-async`
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from miles.config.commands import COMMANDS, WITH_ROLLOUTS
from miles.config.old_names import old_name_words
from miles.config.options.base import OptionSet
from miles.config.reading import MASK, shown, shown_unknown
from miles.config.registry import SECTIONS, Option, find_option, nearest_option, option_name, selector_of, variants_of
from miles.config.sources import COMMAND_FLAGS, Given, Origin, OriginKind
from miles.config.toml_lines import lines_of_keys
from miles.errors import ConfigError, Problem

ABOUT_PRESETS = (("description",), ("needs",))  # about a preset, for the user to read
_PLACE = re.compile(r"\(at (?:line (\d+), column (\d+)|end of document)\)")


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A file, read.

    tables: table (``""``, ``train_async``, ``train_async.fully_async``) → what it gives.
    """

    tables: Mapping[str, tuple[Given, ...]]
    problems: tuple[Problem, ...] = ()


@dataclass(slots=True)
class _Reader:
    """Walks one parsed file and collects what it gives and what is wrong with it."""

    label: str
    kind: OriginKind
    folder: Path
    lines: Mapping[tuple[str, ...], int]
    tables: dict[str, tuple[Given, ...]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def origin(self, path: tuple[str, ...]) -> Origin:
        table, spelling = ".".join(path[:-1]), path[-1] if path[-1] != option_name(path[-1]) else ""
        if self.kind is OriginKind.PRESET:
            return Origin(self.kind, self.label, table, spelling)
        line = next((self.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.lines), 1)
        return Origin(self.kind, f"{self.label}:{line}", table, spelling)

    def refuse(self, path: tuple[str, ...], value: Any, why: str, remedy: str) -> None:
        known = find_option(path[-1])
        text = "" if isinstance(value, Mapping) else shown(known, value) if known else shown_unknown(path[-1], value)
        self.problems.append(Problem(path[-1], text, self.origin(path).text, why, remedy))

    def walk(self, content: Mapping[str, Any], path: tuple[str, ...] = ()) -> None:
        given: dict[str, Given] = {}
        for key, value in content.items():
            if (*path, key) in ABOUT_PRESETS and self.kind is OriginKind.PRESET:
                continue
            if isinstance(value, Mapping) and _is_table((*path, key)):
                self.walk(value, (*path, key))
            elif self._knows((*path, key), value):
                name = option_name(key)
                if name in given:
                    other = given[name].origin.spelling or name
                    self.refuse((*path, key), value, "is given twice in one table", f"Keep one of {other} and {key}")
                names = value if isinstance(value, Mapping) else ()
                items = {item: self.origin((*path, key, item)).text for item in names}
                given[name] = Given(name, value, self.origin((*path, key)), self.folder, items)
        table = ".".join(path).replace("-", "_")
        self.tables[table] = self.tables.get(table, ()) + tuple(given.values())

    def _knows(self, path: tuple[str, ...], value: Any) -> bool:
        option = find_option(path[-1])
        if option is None or (isinstance(value, Mapping) and not option.shape.pairs):
            self.refuse(path, value, *_unknown_words(path, value))
            return False
        if not _may_stand_in(option, path[:-1]):
            self.refuse(path, value, f"does not belong in [{'.'.join(path[:-1])}]", _where_else(option, path[:-1]))
            return False
        return True


def read_toml(path: Path, label: str, kind: OriginKind, folder: Path, named_by: str = "--config") -> TomlFile:
    """A configuration file or preset.

    label: what origins call it (``run.toml``, ``preset reverse``).
    named_by: who names it (``--config``, ``--preset``, ``$MILES_CONFIG``).

    Raises:
        ConfigError: it cannot be read or is not TOML; the text shows the line and the place in it.
    """
    about = "preset" if kind is OriginKind.PRESET else "config"
    try:
        text = path.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except FileNotFoundError as error:
        raise ConfigError([Problem(about, label, named_by, "there is no such file", "Correct the path")]) from error
    except (OSError, ValueError) as error:
        raise ConfigError([Problem(about, label, named_by, f"cannot be read: {error}", "Give a TOML file")]) from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([_syntax_problem(text, about, label, str(error))]) from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, brackets in brackets in brackets
        raise ConfigError([Problem(about, label, named_by, f"is not TOML: {error}", "Correct the file")]) from error
    reader = _Reader(label, kind, folder, lines_of_keys(text))
    reader.walk(content)
    return TomlFile(reader.tables, tuple(reader.problems))


def _syntax_problem(text: str, about: str, label: str, message: str) -> Problem:
    lines = text.split("\n")
    place = _PLACE.search(message)
    if place and place.group(1):
        line, column = int(place.group(1)), int(place.group(2))
    else:
        line = max((number for number, content in enumerate(lines, 1) if content.strip()), default=1)
        column = len(lines[line - 1]) + 1
    what = _PLACE.sub("", message).strip().lower()
    shown_line = f"\n    {lines[line - 1]}\n    {' ' * (column - 1)}^" if not _holds_secret(lines[line - 1]) else f" {MASK}"
    return Problem(about, label, f"{label}:{line}", f"is not TOML: {what}", f"Correct line {line}:{shown_line}")


def _holds_secret(line: str) -> bool:
    option = find_option(line.partition("=")[0].strip())
    return option is not None and option.meta.secret


def home_table(option: Option) -> str:
    """The most general table an option may stand in (``train-async``); empty for the top of the file."""
    homes = []
    commands = [command for command in option.commands if command in WITH_ROLLOUTS]
    for command in commands or option.commands:
        first = next(owner for owner in option.owners if owner.command == command)
        selector = selector_of(first.option_set)
        homes.append(command if selector in (None, option.name) else f"{command}.{_table_name(selector)}")
    return "" if len(homes) == len(WITH_ROLLOUTS) else homes[0]


def _where_else(option: Option, table: tuple[str, ...]) -> str:
    if table[0] in option.commands and len(table) > 1:
        return f"Leave {option.name} out of this table: it does not count with --{_table_name(table[1])}"
    home = home_table(option)
    return f"Move it to [{home}]" if home else "Move it to the top of the file"


def _table_name(selector: str | None) -> str:
    return (selector or "").replace("_", "-")


def _variant_tables() -> Mapping[tuple[str, str], type[OptionSet]]:
    return {
        (command, selector): option_set
        for command in COMMANDS
        for section in SECTIONS
        for option_set in variants_of(command, section)
        if (selector := selector_of(option_set))
    }


def _is_table(path: tuple[str, ...]) -> bool:
    if len(path) == 1:
        return path[0] in COMMANDS
    return len(path) == 2 and (path[0], option_name(path[1])) in _variant_tables()


def _may_stand_in(option: Option, table: tuple[str, ...]) -> bool:
    owners = [owner for owner in option.owners if not table or owner.command == table[0]]
    if len(table) < 2:
        return bool(owners)
    variant = _variant_tables()[table[0], option_name(table[1])]
    section = next(section for section in SECTIONS if variant in variants_of(table[0], section))
    return any(owner.section != section or owner.option_set is variant for owner in owners)


def _unknown_words(path: tuple[str, ...], value: Any) -> tuple[str, str]:
    if isinstance(value, Mapping):
        if (option := find_option(path[-1])) is not None and not option.meta.selector:
            where = f"in [{home}]" if (home := home_table(option)) else "at the top of the file"
            return "is a table, and one value is due", f"Write {option.name} = {option.metavar or 'true'} {where}"
        tables = [*COMMANDS, *(f"{command}.{_table_name(selector)}" for command, selector in _variant_tables())]
        near = difflib.get_close_matches(".".join(path), tables, n=1, cutoff=0.5)
        if near:
            return "there is no such option or table", f"Did you mean [{near[0]}]?"
        return "there is no such table", f"Option names are flat: write the keys of [{'.'.join(path)}] at the top of the file"
    return unknown_words(path[-1], path[0] if len(path) > 1 else None)


def unknown_words(spelling: str, command: str | None) -> tuple[str, str]:
    """Why and remedy for a name that no option has."""
    if old := old_name_words(spelling):
        return old
    if (name := option_name(spelling)) in COMMAND_FLAGS:
        flag = "--" + name.replace("_", "-")
        if spelling.startswith("-"):
            return "is a flag of another command", f"`miles config explain {flag}` says of which"
        return "is a flag of the command line, and no option of a run", f"Pass {flag} there, and leave {spelling} out"
    near = nearest_option(spelling, command)
    if near is None:
        return "there is no such option", f"`miles {command or 'train'} --help` lists the options"
    owner = f", an option of `miles {near.commands[0]}`" if len(near.commands) == 1 and near.commands[0] != command else ""
    name = near.flag if spelling.startswith("-") else near.name
    return "there is no such option", f"Did you mean {name}{owner}?"
