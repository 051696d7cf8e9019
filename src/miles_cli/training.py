"""``miles train`` and ``miles train-async``: resolve, print, and either stop there (``--dry-run``) or run."""

import sys
from typing import TYPE_CHECKING

from miles.config.resolution import Resolution
from miles.errors import ConfigError, Problem
from miles_cli.invocation import Typed
from miles_cli.showing import say, sources_of, standing_lines

if TYPE_CHECKING:
    from rich.console import Console


def train_command(
    command: str, typed: Typed, preset: str | None, config: list[str] | None, *, dry_run: bool, as_json: bool = False
) -> int:
    """Run a command; the process's exit code.

    Raises:
        ConfigError: it cannot run, with every reason.
        MilesError: the run failed.
    """
    from rich.console import Console

    from miles.config.resolve import resolve

    if as_json and not dry_run:
        raise ConfigError([Problem("json", "", "--json", "counts only with --dry-run", "Pass --dry-run, or leave --json out")])
    sources = sources_of(typed, preset, config)
    resolution = resolve(command, sources, code_too=True)
    if as_json:
        _print_data(resolution)
        return 0
    console = Console(file=sys.stdout, highlight=False, emoji=False)  # its own stream: a run redirects what libraries print
    say(console, standing_lines(sources))
    _print_configuration(resolution, console, brief=console.is_terminal and not dry_run)
    if dry_run:
        _print_plan(resolution, console)
        return 0
    return _run(resolution, console)


def _print_configuration(resolution: Resolution, console: "Console", *, brief: bool) -> None:
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


def _print_plan(resolution: Resolution, console: "Console") -> None:
    from miles.config.plan import make_plan
    from miles.loops.resume import look_ahead

    lines = make_plan(resolution).lines()
    if resumed := look_ahead(resolution):
        lines = (*lines, "resume", *(f"  {line}" for line in resumed))
    console.print("\n".join(["", "plan", *lines, "", "dry run: nothing was started"]), markup=False, soft_wrap=True)


def _print_data(resolution: Resolution) -> None:
    import json

    from miles.config.plan import make_plan
    from miles.config.records import to_data
    from miles.loops.resume import look_ahead

    configuration = to_data(resolution.command, resolution.derived, resolution.rows, resolution.warnings)
    content = {"configuration": configuration, "plan": make_plan(resolution).data(), "resume": look_ahead(resolution)}
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n")


def _run(resolution: Resolution, console: "Console") -> int:
    from miles_cli.live import reporter_for

    reporter = reporter_for(resolution, console)
    reporter.stage("importing torch and Ray")
    try:
        from miles.loops.start import start_run

        return start_run(resolution, reporter)
    finally:
        reporter.close()
