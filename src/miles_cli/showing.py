"""``miles config …``: what a command would run with, and why; starts nothing and imports no user code."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from miles.config.presets import preset_description, preset_names
from miles.config.registry import VARIABLE_PREFIX
from miles.config.resolution import Examination
from miles.config.sources import Sources
from miles.errors import ConfigError, Problem
from miles_cli.invocation import Typed
from miles_cli.problems import plain_problems
from miles_cli.source_options import DATA_FORMATS, FORMATS

if TYPE_CHECKING:
    from rich.console import Console


def sources_of(typed: Typed, preset: str | None, config: list[str] | None) -> Sources:
    """The sources of a command started here and now."""
    files = tuple(Path(name) for name in config or ())
    return Sources(typed.flags, files, preset, dict(os.environ), Path.cwd())


def show_command(command: str, typed: Typed, preset: str | None, config: list[str] | None, format: str) -> None:
    """Print the configuration of a command.

    Raises:
        ConfigError: it could not run.
    """
    from miles.config.resolve import examine

    _check_format(format)
    found = examine(command, sources_of(typed, preset, config))
    needed, wrong = _split(found)
    if wrong:
        raise ConfigError(wrong)
    _print(found, needed, format)


def show_overview(preset: str | None, config: list[str] | None, format: str) -> None:
    """Print which sources were looked at and what they yield for ``miles train``.

    Raises:
        ConfigError: what the sources say could not run; an option that is merely missing is listed as needed.
    """
    from miles.config.resolve import examine

    _check_format(format)
    sources = sources_of(Typed({}), preset, config)
    found = examine("train", sources)
    needed, wrong = _split(found)
    if wrong:
        raise ConfigError(wrong)
    for_people = format not in DATA_FORMATS
    if for_people:
        _say(_console(), _looked_at(sources))
    _print(found, needed, format)
    if for_people:
        _say(_console(), ["", "with options:", "  miles config show train …", "  miles config show train-async …"])


def list_presets() -> None:
    """Print the presets."""
    console = _console()
    for name in preset_names():
        _say(console, [f"{name}  {preset_description(name)}"])


def _check_format(word: str) -> None:
    if word not in FORMATS:
        raise ConfigError([Problem("format", word, "--format", f"is not one of {', '.join(FORMATS)}", "Give one of them")])


def _split(found: Examination) -> tuple[list[Problem], list[Problem]]:
    """Options that are merely missing, and everything else."""
    needed = [problem for problem in found.problems if _is_missing(problem)]
    return needed, [problem for problem in found.problems if not _is_missing(problem)]


def _is_missing(problem: Problem) -> bool:
    return not problem.value and problem.origin in ("", "default")


def _looked_at(sources: Sources) -> list[str]:
    preset = f"preset      {sources.preset}" if sources.preset else f"preset      none (--preset {'|'.join(preset_names())})"
    lines = ["looked at, later ones win:", f"  {preset}"]
    if sources.preset:
        lines.append(f"              {preset_description(sources.preset)}")
    files = ", ".join(str(file) for file in sources.config_files) or "none (--config FILE)"
    variables = ", ".join(sorted(name for name in sources.environ if name.startswith(VARIABLE_PREFIX)))
    return [*lines, f"  files       {files}", f"  variables   {variables or 'none (MILES_…)'}", ""]


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False)


def _say(console: "Console", lines: list[str]) -> None:
    console.print("\n".join(lines), markup=False, soft_wrap=not console.is_terminal)


def _print(found: Examination, needed: list[Problem], format: str) -> None:
    from miles_cli.render import print_rows
    from miles_cli.wording import heading

    console = _console()
    if format in DATA_FORMATS:
        from miles_cli.as_data import as_json, as_toml

        console.file.write(as_json(found, needed) if format == "json" else as_toml(found))
        return
    for warning in found.warnings:
        _say(console, [f"warning: {warning}"])
    as_table = format == "table" or (format == "auto" and console.is_terminal)
    print_rows(found.rows, console, as_table=as_table, title=heading(found.command, found.derived))
    if needed:
        _say(console, ["", "needed before it can run:", *plain_problems(needed)[1:]])
