"""The ``miles`` command: what there is to call, and nothing that takes long to import.

miles train, miles train-async    parse ─► resolve ─► print ─► miles.loops.start
miles config show, presets        parse ─► examine ─► print
"""

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from miles_cli.invocation import CommandGroup, PlainCommand, RootGroup, ShowGroup, TrainAsyncCommand, TrainCommand
from miles_cli.source_options import ConfigFiles, DryRun, Format, HelpAll, Preset

HELP = "Reinforcement-learning post-training for language models, from a laptop CPU to a Ray cluster of GPUs."
TRAIN = """Train, one thing after another: the policy waits for rollout k, the engines wait for step k. Staleness 0.

First try: miles train --preset reverse"""
TRAIN_ASYNC = """Train while the next answers are sampled: one rollout ahead, or without end with --fully-async.

First try: miles train-async --fully-async --preset reverse"""

app = typer.Typer(name="miles", cls=RootGroup, help=HELP, add_completion=False, rich_markup_mode="rich")
config_app = typer.Typer(name="config", cls=CommandGroup, help="See what a command would run with, and why.")
show_app = typer.Typer(
    name="show",
    cls=ShowGroup,
    invoke_without_command=True,
    help="Every option with its value and where the value came from. Name a command to give its options, too.",
)
config_app.add_typer(show_app)
app.add_typer(config_app)


def _print_version(value: bool) -> None:
    if value:
        import miles

        typer.echo(f"miles {miles.__version__}")
        raise typer.Exit


def _show_completion(value: bool) -> None:
    if value:
        from miles_cli.shells import script_for_this_shell

        typer.echo(script_for_this_shell())
        raise typer.Exit


def _install_completion(value: bool) -> None:
    if value:
        from miles_cli.shells import install_for_this_shell

        typer.echo(f"Completion is in {install_for_this_shell()}. It works in the next shell that you open.")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    show_completion: Annotated[
        bool,
        typer.Option("--show-completion", help="Print the completion script of this shell.", callback=_show_completion),
    ] = False,
    install_completion: Annotated[
        bool,
        typer.Option("--install-completion", help="Install completion for this shell.", callback=_install_completion),
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        ctx.get_help()


@app.command("train", cls=TrainCommand, help=TRAIN, short_help="Train and sample in turn: staleness 0.")
def train(
    ctx: typer.Context, preset: Preset = None, config: ConfigFiles = None, dry_run: DryRun = False, help_all: HelpAll = False
) -> None:
    """Run ``miles train``."""
    from miles_cli.training import train_command

    raise typer.Exit(train_command("train", ctx.obj, preset, config, dry_run=dry_run))


@app.command("train-async", cls=TrainAsyncCommand, help=TRAIN_ASYNC, short_help="Train while the next answers are sampled.")
def train_async(
    ctx: typer.Context, preset: Preset = None, config: ConfigFiles = None, dry_run: DryRun = False, help_all: HelpAll = False
) -> None:
    """Run ``miles train-async``."""
    from miles_cli.training import train_command

    raise typer.Exit(train_command("train-async", ctx.obj, preset, config, dry_run=dry_run))


@config_app.callback(invoke_without_command=True)
def _config(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        ctx.get_help()


@show_app.callback()
def show(ctx: typer.Context, preset: Preset = None, config: ConfigFiles = None, format: Format = "auto") -> None:
    """Show what the sources yield for ``miles train``."""
    from miles_cli.showing import show_overview

    if ctx.invoked_subcommand is None:
        show_overview(preset, config, format)


@show_app.command("train", cls=TrainCommand, help="What `miles train` would run with.")
def show_train(
    ctx: typer.Context, preset: Preset = None, config: ConfigFiles = None, format: Format = "auto", help_all: HelpAll = False
) -> None:
    """Show the configuration of ``miles train``."""
    from miles_cli.showing import show_command

    show_command("train", ctx.obj, preset, config, format)


@show_app.command("train-async", cls=TrainAsyncCommand, help="What `miles train-async` would run with.")
def show_train_async(
    ctx: typer.Context, preset: Preset = None, config: ConfigFiles = None, format: Format = "auto", help_all: HelpAll = False
) -> None:
    """Show the configuration of ``miles train-async``."""
    from miles_cli.showing import show_command

    show_command("train-async", ctx.obj, preset, config, format)


@config_app.command("presets", cls=PlainCommand)
def presets() -> None:
    """The recipes that come with miles."""
    from miles_cli.showing import list_presets

    list_presets()


def _terminated(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> None:
    """The console script."""
    signal.signal(signal.SIGTERM, _terminated)
    app()
