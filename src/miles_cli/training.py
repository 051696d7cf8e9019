"""``miles train`` and ``miles train-async``: resolve, print, and either stop there (``--dry-run``) or run."""

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from miles.config.resolution import Resolution
from miles.errors import ConfigError, Problem
from miles_cli.invocation import Typed
from miles_cli.showing import say, sources_of, standing_lines

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class Asked:
    """What was typed beside the options of a run."""

    dry_run: bool = False
    as_json: bool = False
    gpu_memory_gib: float | None = None


def train_command(command: str, typed: Typed, preset: str | None, config: list[str] | None, asked: Asked) -> int:
    """Run a command; the process's exit code.

    Raises:
        ConfigError: it cannot run, with every reason.
        MilesError: the run failed.
    """
    from rich.console import Console

    from miles.config.resolve import resolve
    from miles_cli.dry_run import machine_here, print_data, print_plan, refuse_early

    refuse_without_dry_run(asked)
    sources = replace(sources_of(typed, preset, config), gpu_memory_gib=asked.gpu_memory_gib)
    resolution = resolve(command, sources, code_too=True)
    if asked.as_json:
        print_data(resolution, machine_here(sources))
        return 0
    console = Console(file=sys.stdout, highlight=False, emoji=False)  # its own stream: a run redirects what libraries print
    say(console, standing_lines(sources))
    print_configuration(resolution, console, brief=console.is_terminal and not asked.dry_run)
    if asked.dry_run:
        print_plan(resolution, machine_here(sources), console)
        return 0
    refuse_early(resolution)
    return _run(resolution, console)


def print_configuration(resolution: Resolution[Any], console: "Console", *, brief: bool) -> None:
    """All rows, or only those that somebody has chosen and those that follow."""
    from miles_cli.render import is_default, print_rows
    from miles_cli.wording import heading

    for warning in resolution.warnings:
        console.print(f"warning: {warning}", markup=False, soft_wrap=not console.is_terminal, style="yellow")
    rows = [row for row in resolution.rows if not (brief and is_default(row))]
    hidden = len(resolution.rows) - len(rows)
    footer = f"{hidden} defaults are not listed here; `miles config show {resolution.command} …` lists them" if hidden else ""
    title = heading(resolution.command, resolution.derived)
    print_rows(rows, console, as_table=console.is_terminal, title=title, footer=footer)


def refuse_without_dry_run(asked: Asked) -> None:
    """Some words count only where nothing is started.

    Raises:
        ConfigError: they were typed, and it is no dry run.
    """
    given = {"--json": asked.as_json, "--gpu-memory-gib": asked.gpu_memory_gib is not None}
    problems = [
        Problem(flag.removeprefix("--"), "", flag, "counts only with --dry-run", f"Pass --dry-run, or leave {flag} out")
        for flag, is_given in given.items()
        if is_given
    ]
    if problems and not asked.dry_run:
        raise ConfigError(problems)


def _run(resolution: Resolution, console: "Console") -> int:
    from miles_cli.live import reporter_for

    reporter = reporter_for(resolution, console)
    reporter.stage("importing torch and Ray")
    try:
        from miles.loops.start import start_run

        return start_run(resolution, reporter)
    finally:
        reporter.close()
