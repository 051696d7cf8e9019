"""``miles train`` and ``miles train-async``: resolve, print, and either stop there (``--dry-run``) or run."""

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from miles.config.devices import find_gpus, host_memory
from miles.config.fit import Machine, machine_of
from miles.config.resolution import Resolution
from miles.config.sources import Sources
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

    _refuse_without_dry_run(asked)
    sources = replace(sources_of(typed, preset, config), gpu_memory_gib=asked.gpu_memory_gib)
    resolution = resolve(command, sources, code_too=True)
    if asked.as_json:
        _print_data(resolution, machine_here(sources))
        return 0
    console = Console(file=sys.stdout, highlight=False, emoji=False)  # its own stream: a run redirects what libraries print
    say(console, standing_lines(sources))
    _print_configuration(resolution, console, brief=console.is_terminal and not asked.dry_run)
    if asked.dry_run:
        _print_plan(resolution, machine_here(sources), console)
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


def _print_plan(resolution: Resolution, machine: Machine, console: "Console") -> None:
    from miles.config.plan import make_plan
    from miles.loops.resume import look_ahead

    plan = make_plan(resolution, machine)
    lines = plan.lines()
    if resumed := look_ahead(resolution):
        lines = (*lines, "resume", *(f"  {line}" for line in resumed))
    console.print("\n".join(["", "plan", *lines, ""]), markup=False, soft_wrap=True)
    for warning in plan.warnings:
        console.print(f"warning: {warning}", markup=False, soft_wrap=True, style="yellow")
    console.print("dry run: nothing was started", markup=False, soft_wrap=True)


def _print_data(resolution: Resolution, machine: Machine) -> None:
    import json

    from miles.config.plan import make_plan
    from miles.config.records import to_data
    from miles.loops.resume import look_ahead

    configuration = to_data(resolution.command, resolution.derived, resolution.rows, resolution.warnings)
    content = {"configuration": configuration, "plan": make_plan(resolution, machine).data(), "resume": look_ahead(resolution)}
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n")


def machine_here(sources: Sources) -> Machine:
    """What a plan is held against: this machine, or GPUs as the user states them."""
    gpus = find_gpus(sources.environ) if sources.gpu_memory_gib is None else None
    return machine_of(gpus, host_memory(), sources.gpu_memory_gib)


def _refuse_without_dry_run(asked: Asked) -> None:
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
