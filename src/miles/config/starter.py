"""A file to start from: every usual option with its meaning, commented out at its default, or as a preset sets it."""

import textwrap
from collections.abc import Iterator

from miles.config.files import home_table
from miles.config.layers import gather
from miles.config.reading import read_value
from miles.config.registry import REQUIRED, Option, option_table, options_of
from miles.config.sources import Sources
from miles.config.toml_out import toml_literal

WIDTH = 110
SCHEMA_FILE = "miles.schema.json"


def starter_toml(command: str, preset: str | None) -> str:
    """The text of a TOML file for a command.

    Raises:
        ConfigError: there is no such preset.
    """
    given = _preset_values(command, preset) if preset else {}
    options = [option for option in options_of(command) if option.meta.usual or option.name in given]
    by_table: dict[str, list[Option]] = {"": []}
    for option in options:
        by_table.setdefault(home_table(option_table()[option.name]), []).append(option)
    blocks = ["\n".join(_header(command, preset))]
    for table in sorted(by_table):
        blocks += [f"[{table}]"] if table else []
        blocks += list(_blocks(command, by_table[table], given))
    return "\n\n".join(blocks) + "\n"


def _header(command: str, preset: str | None) -> Iterator[str]:
    yield f"#:schema ./{SCHEMA_FILE}"
    yield f"# Options of `miles {command}`. The schema, for editors: miles config schema > {SCHEMA_FILE}"
    yield f"# Named `miles.toml`, this file counts by itself; else: miles {command} --config FILE"
    if preset:
        yield f"# What is not commented out comes from the preset {preset}."


def _blocks(command: str, options: list[Option], given: dict[str, str]) -> Iterator[str]:
    """Options under the name of their panel."""
    panels: dict[str, list[str]] = {}
    for option in options:
        panels.setdefault(option.panel, []).append("\n".join(_lines(command, option, given)))
    for panel, texts in panels.items():
        yield "\n".join([f"# ── {panel} ──", *texts])


def _lines(command: str, option: Option, given: dict[str, str]) -> Iterator[str]:
    yield from textwrap.wrap(option.help, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    if option.name in given:
        yield f"{option.name} = {given[option.name]}"
    else:
        yield f"# {option.name} = {_default(command, option)}"


def _default(command: str, option: Option) -> str:
    owner = next(owner for owner in option.owners if owner.command == command)
    is_switch = option.meta.selector and option.shape.scalar is bool
    default = False if is_switch else owner.option_set.model_fields[option.name].default
    if default is REQUIRED:
        return f'"{option.metavar}"  # required'
    return "{}" if option.shape.pairs and not default else toml_literal(default)


def _preset_values(command: str, preset: str) -> dict[str, str]:
    """What a preset gives, read, as TOML; paths become absolute."""
    layers = gather(command, Sources(preset=preset))
    layers.raise_problems()
    return {
        name: toml_literal(read_value(option_table()[name], chain[0].raw, chain[0].folder))
        for name, chain in layers.chains.items()
        if command in option_table()[name].commands
    }
