"""What a resumed run may change: the options it was started with against those given now, as a diff.

recorded config.toml ──┐
                       ├──changes_between──► one Change per option, with the class that the option declares
config.toml to be    ──┘

safe         the course of the training stays what it was (cadence, length, time-outs): taken
course       the training goes on differently (learning rate, seed, batch): taken with --accept-changes only
impossible   what is on disk would no longer fit (model, group size): refused
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miles.config.commands import COMMANDS
from miles.config.options.base import ChangeClass
from miles.config.reading import written
from miles.config.registry import REQUIRED, option_table
from miles.config.resolution import Resolution
from miles.config.toml_out import NOT_WRITTEN, config_toml
from miles.config.view import view_of
from miles.errors import ConfigError, Problem

ABSENT = "not given"
WORDS: Mapping[ChangeClass, str] = {
    "safe": "safe",
    "course": "changes the course of the run",
    "impossible": "impossible",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One option that is not what the run was started with.

    recorded, wanted: the two values as text.
    origin: where the wanted one came from.
    """

    option: str
    recorded: str
    wanted: str
    origin: str
    change_class: ChangeClass

    def __str__(self) -> str:
        return f"{self.option}: {self.recorded} → {self.wanted}  ({WORDS[self.change_class]})"


def changes_between(recorded: str, resolution: Resolution[Any]) -> tuple[Change, ...]:
    """The options that differ between the text of a run's ``config.toml`` and a configuration, in the order of the options."""
    before, now = flat(recorded), flat(config_toml(resolution))
    origins = {row.option: row.origin for row in resolution.rows}
    defaults = _defaults(resolution)
    changes = []
    for name in sorted(before.keys() | now.keys(), key=_place):
        default = defaults.get(name, ABSENT)
        old, new = before.get(name, default), now.get(name, default)
        if name not in NOT_WRITTEN and old != new:
            changes.append(Change(name, _text(old), _text(new), origins.get(name, ""), _class_of(name)))
    return tuple(changes)


def refused_changes(changes: Iterable[Change], run_dir: Path, *, accepted: bool) -> list[Problem]:
    """A problem for every change that cannot be taken, or not without ``--accept-changes``."""
    return [
        _problem(change, run_dir)
        for change in changes
        if change.change_class == "impossible" or (change.change_class == "course" and not accepted)
    ]


def compare_with_recorded(recorded: str, resolution: Resolution[Any], run_dir: Path) -> tuple[Change, ...]:
    """The changes with which a run may go on.

    Raises:
        ConfigError: one of them is refused.
    """
    changes = changes_between(recorded, resolution)
    problems = refused_changes(changes, run_dir, accepted=resolution.config.run.accept_changes)
    if problems:
        raise ConfigError(problems, diff_lines(changes, run_dir))
    return changes


def diff_lines(changes: Sequence[Change], run_dir: Path) -> list[str]:
    """Everything that differs, taken or refused, each option with its class."""
    return [f"changed since the run in {run_dir} was started:", *(f"  {change}" for change in changes)]


def flat(text: str) -> dict[str, Any]:
    """Keys and values of a config.toml without its tables."""
    keys: dict[str, Any] = {}
    tables = [tomllib.loads(text)]
    while tables:
        for key, value in tables.pop().items():
            if isinstance(value, dict) and (key in COMMANDS or key.replace("-", "_") in ("fully_async", "colocate")):
                tables.append(value)
            else:
                keys[key] = value
    return keys


def _problem(change: Change, run_dir: Path) -> Problem:
    diff = f"{change.recorded} → {change.wanted}"
    if change.change_class == "impossible":
        why = f"{diff} is impossible: what the run in {run_dir} has on disk belongs to {change.recorded}"
        return Problem(change.option, change.wanted, change.origin, why, "Give the recorded value, or a new --run-dir")
    why = f"{diff} changes the course of the run in {run_dir}"
    remedy = "Pass --accept-changes to go on with it, give the recorded value, or a new --run-dir"
    return Problem(change.option, change.wanted, change.origin, why, remedy)


def _class_of(name: str) -> ChangeClass:
    known = option_table().get(name)
    return known.meta.on_resume if known else "course"


def _place(name: str) -> tuple[int, str]:
    names = list(option_table())
    return (names.index(name) if name in names else len(names), name)


def _defaults(resolution: Resolution[Any]) -> dict[str, Any]:
    """Defaults as a file would hold them; an option of which a file says nothing has its default."""
    variants = view_of(resolution.command, resolution.config).variants.values()
    fields = {name: info for option_set in variants for name, info in option_set.model_fields.items()}
    return {
        name: list(info.default) if isinstance(info.default, tuple) else info.default
        for name, info in fields.items()
        if info.default is not REQUIRED and info.default is not None and not option_table()[name].meta.selector
    }


def _text(value: Any) -> str:
    return value if value is ABSENT else written(value)
