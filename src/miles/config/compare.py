"""Two configurations side by side: files, presets or run folders, resolved from themselves alone.

Neither the environment nor ``miles.toml`` counts here, so that the answer is the same wherever it is asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from miles.config.layers import command_named
from miles.config.presets import preset_names
from miles.config.records import read_record
from miles.config.registry import option_table, variants_of
from miles.config.resolution import Row
from miles.config.resolve import examine
from miles.config.sources import Sources
from miles.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two.

    command: the one that it is resolved for.
    needed: options that it leaves to others, so that nothing can be derived.
    is_record: it tells what a run used, perhaps of a version that did not have all options yet.
    """

    label: str
    command: str
    rows: Mapping[str, Row]
    needed: tuple[str, ...] = ()
    is_record: bool = False


class Difference(NamedTuple):
    """An option whose values differ; None where it does not count."""

    option: str
    first: Row | None
    second: Row | None


def read_sides(first: str, second: str, cwd: Path, command: str | None) -> tuple[Side, Side]:
    """Both sides; one that does not say what command it is for takes the other's, or else ``train``.

    Raises:
        ConfigError: one cannot be read, or what it says could not run.
    """
    wanted = [command or _command_of(word, cwd) for word in (first, second)]
    known = next((name for name in wanted if name), "train")
    one, other = (_read(word, cwd, name or known) for word, name in zip((first, second), wanted, strict=True))
    return one, other


def differences(first: Side, second: Side) -> list[Difference]:
    """What differs, in the order of the options; derived values only where both sides have them."""
    names = dict.fromkeys((*first.rows, *second.rows))
    partial = bool(first.needed) != bool(second.needed)
    pairs = (Difference(name, first.rows.get(name), second.rows.get(name)) for name in names)
    differing = [pair for pair in pairs if _differ(pair) and not (partial and _is_derived(pair))]
    return [pair for pair in differing if not _is_younger(pair.first, second, pair) and not _is_younger(pair.second, first, pair)]


def _differ(pair: Difference) -> bool:
    return pair.first is None or pair.second is None or pair.first.value != pair.second.value


def _is_younger(row: Row | None, other: Side, pair: Difference) -> bool:
    """Whether a record is merely older than the option, which has its default on the other side."""
    option = option_table().get(pair.option)
    if row is None or option is None or not other.is_record or pair.option in other.rows or other.command not in option.commands:
        return False
    owners = {owner.option_set for owner in option.owners if owner.command == other.command}
    return owners == set(variants_of(other.command, option.section)) and bool(row.chain) and row.value == row.chain[-1].value


def _is_derived(pair: Difference) -> bool:
    return any(row is not None and row.derived for row in (pair.first, pair.second))


def _sources(word: str, cwd: Path) -> Sources:
    if word in preset_names() and not (cwd / word).exists():
        return Sources(preset=word, cwd=cwd)
    if not (cwd / word).exists():
        remedy = f"Give a file, a run folder, or one of the presets {', '.join(preset_names())}"
        raise ConfigError([Problem("config", word, "", "there is no such file, folder or preset", remedy)])
    return Sources(config_files=(Path(word),), cwd=cwd)


def _command_of(word: str, cwd: Path) -> str | None:
    if (cwd / word).is_dir():
        return read_record(cwd / word).command
    return command_named(_sources(word, cwd))


def _read(word: str, cwd: Path, command: str) -> Side:
    if (cwd / word).is_dir():
        record = read_record(cwd / word)
        return Side(word, record.command, {row.option: row for row in record.rows}, is_record=True)
    found = examine(command, _sources(word, cwd))
    wrong = [problem for problem in found.problems if not problem.is_missing]
    if wrong:
        raise ConfigError(wrong)
    needed = tuple(problem.option for problem in found.problems)
    return Side(word, command, {row.option: row for row in found.rows}, needed)
