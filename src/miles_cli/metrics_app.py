"""``miles metrics …``: what the numbers of a run mean; nothing here takes long to import."""

from pathlib import Path
from typing import Annotated

import typer

from miles_cli.invocation import CommandGroup, PlainCommand
from miles_cli.source_options import PlainFormat, metric_words, run_words

metrics_app = typer.Typer(
    name="metrics", cls=CommandGroup, help="What the numbers of a run mean, and why they are what they are."
)
SomeRun = Annotated[
    Path | None, typer.Argument(metavar="[RUN]", help="Run folder whose numbers are shown, too.", autocompletion=run_words)
]


@metrics_app.callback(invoke_without_command=True)
def _metrics(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        ctx.get_help()


@metrics_app.command("list", cls=PlainCommand, short_help="Every metric, or those that a run wrote with their last values.")
def list_metrics(run: SomeRun = None, format: PlainFormat = "plain") -> None:
    """Every key of `metrics.jsonl` with its unit and meaning; of a run those that it wrote, with their last values."""
    from miles_cli.metrics import list_command

    list_command(run, format)


@metrics_app.command("explain", cls=PlainCommand, short_help="One metric: meaning, what to expect, causes; in a run, its course.")
def explain_metric(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Key of `metrics.jsonl`, or a part of it.", autocompletion=metric_words)
    ],
    run: SomeRun = None,
    format: PlainFormat = "plain",
) -> None:
    """What a metric is, what to expect of it, and what makes it otherwise; in a run also its course and what decided it."""
    from miles_cli.metrics import explain_command

    explain_command(name, run, format)
