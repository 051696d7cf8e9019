"""The ``config.toml`` of a run folder: every option that counts, so that the same command with it does the same again.

Options of both commands stand at the top, those of one command or variant in its table. Origins and derived values are
comments. The run folder is left out, since the same configuration again is a new run; secrets are left out too.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import tomlkit

from miles.config.files import home_table
from miles.config.reading import UNSET, names_secret, short_exponent
from miles.config.registry import Option, option_table, options_of
from miles.config.resolution import Resolution, Row
from miles.config.view import View, counts, view_of

NOT_WRITTEN = ("run_dir", "accept_changes")
_OPTION_LINE = re.compile(r"(?:# )?([a-z][a-z0-9_]*) (?:=|is not|has no) ")


def config_toml(resolution: Resolution[Any]) -> str:
    """The text of a ``config.toml`` from which the configuration resolves again."""
    view = view_of(resolution.command, resolution.config)
    rows = {row.option: row for row in resolution.rows}
    tables: dict[str, list[str]] = {"": []}
    for option in options_of(resolution.command):
        if option.name in view and option.name not in NOT_WRITTEN:
            tables.setdefault(_table_of(option, resolution), []).append(_line(option, view, rows[option.name]))
    parts = ["\n".join(_header(resolution)), "\n".join(tables.pop(""))]
    parts += [f"[{name}]\n" + "\n".join(tables[name]) for name in sorted(tables)]
    return "\n\n".join([*parts, "\n".join(_derived_comments(resolution))]) + "\n"


def lines_about(text: str, names: Collection[str]) -> str:
    """A ``config.toml`` without the lines of other options, and without tables that this leaves empty."""
    kept: list[str] = []
    for line in text.splitlines():
        about = _OPTION_LINE.match(line)
        if not about or about[1] not in option_table() or about[1] in names:
            kept.append(line)
    joined = re.sub(r"^\[[^\]\n]*\]\n(?=\n|\Z|\[)", "", "\n".join(kept) + "\n", flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", joined)


def _header(resolution: Resolution[Any]) -> Iterator[str]:
    yield f"# A run of `miles {resolution.command}`; the same again:"
    yield f"#     miles {resolution.command} --config config.toml"


def _table_of(option: Option, resolution: Resolution[Any]) -> str:
    """Where an option stands: at the top if both commands mean the same by it, else where only its owner reads it."""
    known = option_table()[option.name]
    home = home_table(known)
    if known.meta.selector and "_" not in known.name:
        return ""  # in its home it would have the name of the table of its variant
    if home:
        return home
    fields = [owner.option_set.model_fields[option.name] for owner in known.owners]
    defaults = {str(None if field.is_required() else field.default) for field in fields}
    conditions = [option_table()[other] for other in known.meta.counts_when]
    at_top = len(defaults) == 1 and not any(_table_of(other, resolution) for other in conditions)
    return "" if at_top else resolution.command


def _line(option: Option, view: View, row: Row) -> str:
    value = view[option.name]
    comment = f"  # {_one_line(row.origin)}" if row.origin else ""
    if option.meta.secret:
        return f"# {option.name} is not written down{comment}"
    if not counts(view, option.name):
        return f"# {option.name} has no effect here"
    if value is None and _default(option, view) is None:
        return f"# {option.name} = {_one_line(row.value)}{comment}"
    if option.shape.pairs and any(names_secret(name) for name, _ in value):
        hidden = ", ".join(name for name, _ in value if names_secret(name))
        value = tuple(pair for pair in value if not names_secret(pair[0]))
        comment += f"{'; ' if comment else '  # '}{hidden} not written down"
    return f"{option.name} = {toml_literal(value)}{comment}"


def _default(option: Option, view: View) -> Any:
    return view.variants[option.section].model_fields[option.name].default


def toml_literal(value: Any) -> str:
    """A value of an option in TOML; relative paths become absolute."""
    if value is None:
        return tomlkit.item(UNSET).as_string()
    if isinstance(value, Path):
        return tomlkit.item(str(value.absolute())).as_string()
    if isinstance(value, tuple):
        return "[" + ", ".join(toml_literal(item) for item in value) + "]"
    text = str(tomlkit.item(value).as_string())
    return short_exponent(text) if isinstance(value, float) else text


def _derived_comments(resolution: Resolution[Any]) -> Iterator[str]:
    yield "# Derived from these:"
    for row in resolution.rows:
        if row.section == "derived":
            yield f"#   {row.option} = {_one_line(row.value)}  ({_one_line(row.arithmetic)})"


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)
