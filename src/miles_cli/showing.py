"""``miles config show`` and ``presets``: what a command would run with, or a run did, and why.

Starts nothing and imports no user code.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from miles.config.presets import preset_description, preset_names
from miles.config.registry import VARIABLE_PREFIX
from miles.config.resolution import Examination, Row
from miles.config.sources import CONFIG_VARIABLE, PROJECT_FILE, Sources
from miles.errors import ConfigError, Problem
from miles_cli.invocation import Typed
from miles_cli.problems import plain_problems
from miles_cli.source_options import DATA_FORMATS, check_format

if TYPE_CHECKING:
    from rich.console import Console


def sources_of(typed: Typed, preset: str | None, config: list[str] | None) -> Sources:
    """The sources of a command started here and now."""
    cwd = Path.cwd()
    here = cwd / PROJECT_FILE
    project = Path(PROJECT_FILE) if here.is_file() or here.is_symlink() else None  # a link to nothing is told, not ignored
    return Sources(typed.flags, tuple(Path(name) for name in config or ()), preset, dict(os.environ), cwd, project)


def standing_lines(sources: Sources) -> list[str]:
    """Files that count though nobody named them on the command line."""
    standing = [file for file in sources.file_sources() if file.named_by != "--config"]
    return [f"also read: {file.path} ({file.named_by})" for file in standing]


def show_command(command: str, sources: Sources, format: str, *, changed: bool) -> None:
    """Print the configuration of a command.

    Raises:
        ConfigError: it could not run.
    """
    check_format(format)
    found, needed = examined(command, sources)
    if format not in DATA_FORMATS:
        say(console_here(), standing_lines(sources))
    _print(found, sources, needed, format, changed=changed)


def show_overview(sources: Sources, format: str, *, changed: bool) -> None:
    """Print which sources were looked at and what they yield for the command that they are about.

    Raises:
        ConfigError: what the sources say could not run; an option that is merely missing is listed as needed.
    """
    from miles.config.layers import command_named

    check_format(format)
    found, needed = examined(command_named(sources) or "train", sources)
    for_people = format not in DATA_FORMATS
    if for_people:
        say(console_here(), _looked_at(sources))
    _print(found, sources, needed, format, changed=changed)
    if for_people:
        say(console_here(), ["", "with options:", "  miles config show train …", "  miles config show train-async …"])


def show_run_folder(folder: Path, format: str, *, changed: bool) -> None:
    """Print what the run in a folder used.

    Raises:
        ConfigError: the folder holds no run.
    """
    from miles.config.records import RECORD_FILE, read_record, recorded_toml
    from miles.config.toml_out import lines_about
    from miles_cli.wording import heading_of

    check_format(format)
    record, console = read_record(folder), console_here()
    rows = _wanted(record.rows, changed=changed)
    if format == "json":
        console.file.write((folder / RECORD_FILE).read_text())
    elif format == "toml":
        console.file.write(lines_about(recorded_toml(folder), {row.option for row in rows}))
    else:
        title = heading_of(record.command, record.schedule, record.staleness_bound)
        print_as(format, rows, console, f"{title} · as run in {folder}")


def list_presets() -> None:
    """Print the presets."""
    console = console_here()
    for name in preset_names():
        say(console, [f"{name}  {preset_description(name)}"])


def examined(command: str, sources: Sources) -> tuple[Examination, list[Problem]]:
    """What is known of a configuration, and the options that are merely missing.

    Raises:
        ConfigError: anything else is wrong with it.
    """
    from miles.config.resolve import examine

    found = examine(command, sources)
    needed = [problem for problem in found.problems if problem.is_missing]
    if len(needed) < len(found.problems):
        raise ConfigError([problem for problem in found.problems if not problem.is_missing])
    return found, needed


def _wanted(rows: Sequence[Row], *, changed: bool) -> list[Row]:
    from miles_cli.render import differs

    return [row for row in rows if differs(row) or not changed]


def _looked_at(sources: Sources) -> list[str]:
    preset = f"preset      {sources.preset}" if sources.preset else f"preset      none (--preset {'|'.join(preset_names())})"
    lines = ["looked at, later ones win:", f"  {preset}"]
    if sources.preset:
        lines.append(f"              {preset_description(sources.preset)}")
    here = f"{PROJECT_FILE}" if sources.project_file else f"none ({PROJECT_FILE} in the working directory)"
    named = sources.environ.get(CONFIG_VARIABLE) or "none"
    files = ", ".join(str(file) for file in sources.config_files) or "none (--config FILE)"
    wanted = (name for name in sources.environ if name.startswith(VARIABLE_PREFIX) and name != CONFIG_VARIABLE)
    variables = ", ".join(sorted(wanted)) or "none (MILES_…)"
    standing = [f"  project     {here}", f"  standing    {named} (${CONFIG_VARIABLE})"]
    return [*lines, *standing, f"  files       {files}", f"  variables   {variables}", ""]


def console_here() -> "Console":
    """Standard output."""
    from rich.console import Console

    return Console(highlight=False, emoji=False)


def say(console: "Console", lines: list[str]) -> None:
    """Print lines as they are; on a terminal they fold at its width."""
    if lines:
        console.print("\n".join(lines), markup=False, soft_wrap=not console.is_terminal)


def print_pairs(console: "Console", pairs: Sequence[tuple[str, str]]) -> None:
    """Two columns: on a terminal the second folds beside the first, elsewhere every pair is one line."""
    width = max(len(label) for label, _ in pairs)
    if not console.is_terminal:
        say(console, [f"{label:<{width}}  {text}" for label, text in pairs])
        return
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=width)
    table.add_column(overflow="fold")
    for label, text in pairs:
        table.add_row(Text(label, "cyan"), Text(text))
    console.print(table)


def print_as(format: str, rows: Sequence[Row], console: "Console", title: str) -> None:
    """Rows as a table or as plain lines."""
    from miles_cli.render import print_rows

    as_table = format == "table" or (format == "auto" and console.is_terminal)
    print_rows(rows, console, as_table=as_table, title=title)


def _print(found: Examination, sources: Sources, needed: list[Problem], format: str, *, changed: bool) -> None:
    from miles_cli.wording import heading

    console, rows = console_here(), _wanted(found.rows, changed=changed)
    if format in DATA_FORMATS:
        from miles_cli.as_data import as_json, as_toml

        names = {row.option for row in rows}
        console.file.write(as_json(found, sources, needed, names) if format == "json" else as_toml(found, names))
        return
    say(console, [f"warning: {warning}" for warning in found.warnings])
    print_as(format, rows, console, heading(found.command, found.derived))
    if needed:
        say(console, ["", "needed before it can run:", *plain_problems(needed)[1:]])
