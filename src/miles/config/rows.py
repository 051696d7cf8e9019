"""The resolved table: a row for every option with all its origins, and one for every value that follows from others."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from miles.config.arithmetic import arithmetic_of, derived_facts
from miles.config.derived import Derived
from miles.config.layers import Chain
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
    chain = chains.get(option.name, ())
    set_aside = option.name in notes
    value = _text(option, view.values.get(option.name, chain[0].raw if chain else REQUIRED))
    layers = tuple(OriginOf(given.origin, shown_given(option, given.raw, given.folder)) for given in chain)
    default = () if option.required else (OriginOf(DEFAULT, _text(option, _default_of(option, view))),)
    note = notes.get(option.name, "")
    if not note and option.name in view and not counts(view, option.name):
        note = "no effect here"
    kept = default if set_aside else (*layers, *default)
    return Row(option.section, option.panel, option.name, value, kept, note=note)


def _default_of(option: Option, view: View) -> Any:
    info = view.variants[option.section].model_fields.get(option.name)
    return option.default if info is None or option.meta.selector else info.default


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
