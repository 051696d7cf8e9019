"""The resolved table: a row for every option with all its origins, and one for every value that follows from others."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from miles.config.arithmetic import arithmetic_of, derived_facts
from miles.config.derived import Derived
from miles.config.layers import Chain
from miles.config.options.base import OptionSet
from miles.config.reading import shown, shown_given
from miles.config.registry import REQUIRED, Option, option_table, options_of
from miles.config.resolution import OriginOf, Row
from miles.config.sources import Origin, OriginKind
from miles.config.view import View, counts

DEFAULT = Origin(OriginKind.DEFAULT, "default")


def make_rows(view: View, chains: Mapping[str, Chain], notes: Mapping[str, str], derived: Derived | None) -> tuple[Row, ...]:
    """All rows, panel by panel, then the derived values that are no options."""
    rows = [_row(option, view, chains, notes) for option in options_of(view.command) if _is_listed(option, view, chains)]
    if derived is None:
        return tuple(rows)
    open_values = arithmetic_of(view, derived)
    rows = [_fill(row, open_values) for row in rows]
    return (*rows, *derived_facts(view, derived))


def _is_listed(option: Option, view: View, chains: Mapping[str, Chain]) -> bool:
    return option.name in view.variants[option.section].model_fields or option.name in chains


def _row(option: Option, view: View, chains: Mapping[str, Chain], notes: Mapping[str, str]) -> Row:
    note = notes.get(option.name, "")
    if not note and option.name in view and not counts(view, option.name):
        note = "no effect here"
    plain = _default_row(option.name, view.variants[option.section], note)
    chain = chains.get(option.name, ())
    if not chain or option.name in notes:
        return plain
    value = _text(option, view.values.get(option.name, chain[0].raw))
    layers = tuple(OriginOf(given.origin, shown_given(option, given.raw, given.folder)) for given in chain)
    return replace(plain, value=value, chain=(*layers, *plain.chain))


@cache
def _default_row(name: str, option_set: type[OptionSet], note: str) -> Row:
    """The row of an option that nobody set, or whose value was set aside."""
    option, info = option_table()[name], option_set.model_fields.get(name)
    value = REQUIRED if info is None else info.default
    shown_default = option.default if info is None or option.meta.selector else info.default
    chain = () if option.required else (OriginOf(DEFAULT, _text(option, shown_default)),)
    return Row(option.section, option.panel, name, _text(option, value), chain, note=note)


def _text(option: Option, value: Any) -> str:
    if value is REQUIRED:
        return ""
    return shown(option, value)


def _fill(row: Row, open_values: Mapping[str, tuple[str, str]]) -> Row:
    """The same row with the value that a left-open option ends up with."""
    if row.option not in open_values or row.option not in option_table():
        return row
    value, arithmetic = open_values[row.option]
    return replace(row, value=value, derived=True, arithmetic=arithmetic)
