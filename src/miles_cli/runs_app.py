"""``miles runs …``: runs that were started before; nothing here takes long to import."""

from pathlib import Path
from typing import Annotated

import typer

from miles_cli.invocation import CommandGroup, PlainCommand
from miles_cli.source_options import Run

runs_app = typer.Typer(name="runs", cls=CommandGroup, help="Runs that were started before: how they stand and how to go on.")


@runs_app.callback(invoke_without_command=True)
def _runs(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        ctx.get_help()


@runs_app.command("list", cls=PlainCommand, short_help="The runs in a folder, the newest first.")
def list_runs(
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="Folder of run folders; by default `runs`.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="The runs as a JSON list.")] = False,
) -> None:
    """The runs in a folder, the newest first: state, schedule, rollouts, last reward and evaluation."""
    from miles_cli.runs import list_command

    list_command(root, as_json=as_json)


@runs_app.command("show", cls=PlainCommand, short_help="One run: state, last metrics, checkpoints, how to go on.")
def show_run(run: Run, as_json: Annotated[bool, typer.Option("--json", help="The run as one JSON object.")] = False) -> None:
    """One run: state, rollouts, last metrics, checkpoints, and the command that goes on with it."""
    from miles_cli.runs import show_command

    show_command(run, as_json=as_json)
