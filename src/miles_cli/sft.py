"""``miles sft``: resolve, print, and either stop there (``--dry-run``) or run."""

import json
import sys
from typing import TYPE_CHECKING

from miles.config.commands import SftConfig
from miles.config.resolution import Resolution
from miles_cli.invocation import Typed
from miles_cli.showing import say, sources_of, standing_lines
from miles_cli.training import Asked, print_configuration, refuse_without_dry_run

if TYPE_CHECKING:
    from rich.console import Console


def sft_command(typed: Typed, preset: str | None, config: list[str] | None, *, dry_run: bool, as_json: bool = False) -> int:
    """Run it; the process's exit code.

    Raises:
        ConfigError: it cannot run, with every reason.
        MilesError: the run failed.
    """
    from rich.console import Console

    from miles.config.resolve import resolve_sft

    refuse_without_dry_run(Asked(dry_run, as_json))
    sources = sources_of(typed, preset, config)
    resolution = resolve_sft(sources)
    if as_json:
        _print_data(resolution)
        return 0
    console = Console(file=sys.stdout, highlight=False, emoji=False)
    say(console, standing_lines(sources))
    print_configuration(resolution, console, brief=console.is_terminal and not dry_run)
    if dry_run:
        _print_plan(resolution, console)
        return 0
    return _run(resolution, console)


def _print_plan(resolution: Resolution[SftConfig], console: "Console") -> None:
    from miles.config.plan import make_sft_plan
    from miles.loops.refusals import refuse_folder
    from miles.loops.resume import look_ahead

    refuse_folder(resolution)
    lines = make_sft_plan(resolution).lines()
    if resumed := look_ahead(resolution):
        lines = (*lines, "resume", *(f"  {line}" for line in resumed))
    console.print("\n".join(["", "plan", *lines, "", "dry run: nothing was started"]), markup=False, soft_wrap=True)


def _print_data(resolution: Resolution[SftConfig]) -> None:
    from miles.config.plan import make_sft_plan
    from miles.config.records import to_data
    from miles.loops.resume import look_ahead

    configuration = to_data(resolution.command, resolution.derived, resolution.rows, resolution.warnings)
    content = {"configuration": configuration, "plan": make_sft_plan(resolution).data(), "resume": look_ahead(resolution)}
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n")


def _run(resolution: Resolution[SftConfig], console: "Console") -> int:
    from miles_cli.live import reporter_for

    reporter = reporter_for(resolution, console)
    try:
        from miles.loops.sft import start_sft

        return start_sft(resolution, reporter)
    finally:
        reporter.close()
