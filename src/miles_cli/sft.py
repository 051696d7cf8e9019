"""``miles sft``: resolve, print, and either stop there (``--dry-run``) or run."""

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from miles.config.commands import SftConfig
from miles.config.resolution import Resolution
from miles_cli.invocation import Typed
from miles_cli.showing import say, sources_of, standing_lines
from miles_cli.training import Asked, print_configuration, refuse_without_dry_run

if TYPE_CHECKING:
    from rich.console import Console

    from miles.config.fit import Machine


def sft_command(typed: Typed, preset: str | None, config: list[str] | None, asked: Asked) -> int:
    """Run it; the process's exit code.

    Raises:
        ConfigError: it cannot run, with every reason.
        MilesError: the run failed.
    """
    from rich.console import Console

    from miles.config.resolve import resolve_sft
    from miles_cli.dry_run import machine_here

    refuse_without_dry_run(asked)
    sources = replace(sources_of(typed, preset, config), gpu_memory_gib=asked.gpu_memory_gib)
    resolution = resolve_sft(sources)
    if asked.as_json:
        _print_data(resolution, machine_here(sources))
        return 0
    console = Console(file=sys.stdout, highlight=False, emoji=False)
    say(console, standing_lines(sources))
    print_configuration(resolution, console, brief=console.is_terminal and not asked.dry_run)
    if asked.dry_run:
        _print_plan(resolution, machine_here(sources), console)
        return 0
    return _run(resolution, console)


def _print_plan(resolution: Resolution[SftConfig], machine: "Machine", console: "Console") -> None:
    from miles.config.plan import make_sft_plan
    from miles.loops.refusals import refuse_folder
    from miles.loops.resume import look_ahead
    from miles_cli.dry_run import print_verdict

    refuse_folder(resolution)
    plan = make_sft_plan(resolution, machine)
    lines = plan.lines()
    if resumed := look_ahead(resolution):
        lines = (*lines, "resume", *(f"  {line}" for line in resumed))
    console.print("\n".join(["", "plan", *lines, ""]), markup=False, soft_wrap=True)
    print_verdict(plan.warnings, resolution, machine, console)


def _print_data(resolution: Resolution[SftConfig], machine: "Machine") -> None:
    from miles.config.plan import make_sft_plan
    from miles.config.records import to_data
    from miles.loops.resume import look_ahead
    from miles_cli.dry_run import refuse_shortage

    configuration = to_data(resolution.command, resolution.derived, resolution.rows, resolution.warnings)
    content = {
        "configuration": configuration,
        "plan": make_sft_plan(resolution, machine).data(),
        "resume": look_ahead(resolution),
    }
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n")
    refuse_shortage(resolution, machine)


def _run(resolution: Resolution[SftConfig], console: "Console") -> int:
    from miles_cli.live import reporter_for

    reporter = reporter_for(resolution, console)
    try:
        from miles.loops.sft import start_sft

        return start_sft(resolution, reporter)
    finally:
        reporter.close()
