"""Every option, flattened out of the option sets: what its names are, what it holds, and who owns it.

Read from the declared fields alone, so that listing the options builds no validator.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from miles.config.commands import COMMANDS
from miles.config.options.base import OptionMeta, OptionSet, meta_of, metas_of
from miles.config.shapes import Shape, shape_of

REQUIRED: Any = PydanticUndefined
VARIABLE_PREFIX = "MILES_"
SECTIONS = (
    "model", "lora", "data", "sampling", "reward", "rollout", "algorithm",
    "critic", "optimizer", "placement", "cluster", "engine", "evaluation", "run",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Owner:
    """A command and the option set through which it has an option."""

    command: str
    section: str
    option_set: type[OptionSet]


@dataclass(frozen=True, slots=True)
class Option:
    """One option of one or more commands.

    section: field of the root that holds it (``rollout``).
    default: ``REQUIRED`` where there is none; that of the first owner where owners differ; False for a switch that
        chooses a variant (``--fully-async``).
    bounds: ``(("gt", 0),)``, ``(("ge", 0), ("lt", 1))``, …
    owners: every (command, option set) that has it, the default variant first.
    """

    name: str
    section: str
    help: str
    meta: OptionMeta
    shape: Shape
    default: Any
    bounds: tuple[tuple[str, float], ...]
    owners: tuple[Owner, ...] = field(repr=False)

    @property
    def flag(self) -> str:
        """``--max-weight-staleness``."""
        return "--" + self.name.replace("_", "-")

    @property
    def negative_flag(self) -> str:
        """``--no-rollout-shuffle``; empty for options that are not switches."""
        return "--no-" + self.name.replace("_", "-") if self.shape.scalar is bool else ""

    @property
    def variable(self) -> str:
        """``MILES_MAX_WEIGHT_STALENESS``."""
        return VARIABLE_PREFIX + self.name.upper()

    @property
    def panel(self) -> str:
        """Heading in ``--help`` and in the resolved table."""
        return self.meta.panel

    @property
    def required(self) -> bool:
        """Whether a run cannot start without it."""
        return self.default is REQUIRED

    @property
    def choices(self) -> tuple[Any, ...]:
        """The words allowed; empty where any value is."""
        return self.shape.choices

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that have it."""
        return tuple(dict.fromkeys(owner.command for owner in self.owners))

    @property
    def option_sets(self) -> tuple[type[OptionSet], ...]:
        """The option sets that declare or inherit it."""
        return tuple(dict.fromkeys(owner.option_set for owner in self.owners))

    @property
    def metavar(self) -> str:
        """What stands for a value in help: ``INTEGER``, ``PATH``, ``NAME PATH``, ``[a|b]``."""
        if self.meta.metavar or self.shape.scalar is bool:
            return self.meta.metavar
        if self.choices:
            return "[" + "|".join(str(word) for word in self.choices) + "]"
        by_kind = {"file": "FILE", "folder": "FOLDER", "dotted": "PACKAGE.MODULE:NAME"}
        by_type = {"int": "INTEGER", "float": "NUMBER", "str": "TEXT", "Path": "PATH"}
        return by_kind.get(self.meta.kind) or by_type[self.shape.scalar.__name__]


@cache
def variants_of(command: str, section: str) -> tuple[type[OptionSet], ...]:
    """The option sets that a command's section may hold, the default first; none where it has no such section."""
    if section not in COMMANDS[command].model_fields:
        return ()
    info = COMMANDS[command].model_fields[section]
    members = get_args(info.annotation) or (info.annotation,)
    default = info.default_factory
    return tuple(sorted(members, key=lambda member: member is not default))


@cache
def selector_of(option_set: type[OptionSet]) -> str | None:
    """The switch that chooses this variant (``fully_async``); None where nothing has to be said."""
    for name, meta in metas_of(option_set).items():
        if meta.selector and shape_of(option_set.model_fields[name].annotation).scalar is bool:
            return name
    return None


@cache
def options_of(command: str) -> tuple[Option, ...]:
    """The options of a command over all its variants, panel by panel."""
    return _collect((command,))


@cache
def all_options() -> tuple[Option, ...]:
    """The options of all commands, each once, panel by panel."""
    return _collect(tuple(COMMANDS))


@cache
def option_table() -> Mapping[str, Option]:
    """All options by name."""
    return MappingProxyType({option.name: option for option in all_options()})


def option_name(spelling: str) -> str:
    """The name behind a flag, key or variable, whether or not there is such an option: ``--no-x-y`` → ``x_y``."""
    plain = spelling.strip().lstrip("$")
    if plain.startswith(VARIABLE_PREFIX):
        plain = plain.removeprefix(VARIABLE_PREFIX).lower()
    name = plain.removeprefix("--").replace("-", "_")
    positive = name.removeprefix("no_")
    return positive if name not in option_table() and plain.startswith("--no-") else name


def find_option(spelling: str) -> Option | None:
    """The option behind a flag, file key, variable or name, with ``-`` or ``_``."""
    return option_table().get(option_name(spelling))


@cache
def nearest_option(spelling: str, command: str | None = None) -> Option | None:
    """The option whose name is most like the one written, rather of one command; None where none is near."""
    name = option_name(spelling)
    scores = {option.name: _likeness(name, option) + 0.05 * (command in option.commands) for option in all_options()}
    best = max(scores, key=lambda known: scores[known])
    return option_table()[best] if scores[best] >= 0.75 else None


def _likeness(name: str, option: Option) -> float:
    if len(name) >= 4 and option.name.startswith(name):
        return 1.0
    return max(difflib.SequenceMatcher(None, name, known).ratio() for known in (option.name, *option.meta.known_as))


def _describe(name: str, info: FieldInfo, owner: Owner) -> Option:
    bounds = tuple(
        (bound, getattr(limit, bound))
        for limit in info.metadata
        for bound in ("gt", "ge", "lt", "le")
        if getattr(limit, bound, None) is not None
    )
    meta, shape = meta_of(info), shape_of(info.annotation)
    default = False if meta.selector and shape.scalar is bool else info.default
    return Option(name, owner.section, info.description or "", meta, shape, default, bounds, (owner,))


def _merge(first: Option, second: Option) -> Option:
    choices = tuple(dict.fromkeys(first.choices + second.choices))
    return replace(first, shape=replace(first.shape, choices=choices), owners=first.owners + second.owners)


def _collect(commands: tuple[str, ...]) -> tuple[Option, ...]:
    found: dict[str, Option] = {}
    owners = (
        Owner(command, section, option_set)
        for section in SECTIONS
        for command in commands
        for option_set in variants_of(command, section)
    )
    for owner in owners:
        for name, info in owner.option_set.model_fields.items():
            option = _describe(name, info, owner)
            found[name] = _merge(found[name], option) if name in found else option
    order = {panel: place for place, panel in enumerate(dict.fromkeys(option.panel for option in found.values()))}
    return tuple(sorted(found.values(), key=lambda option: order[option.panel]))
