"""``miles config …``: one function for each command, which parses and hands on; nothing here takes long to import."""

from pathlib import Path
from typing import Annotated

import typer

from miles_cli.invocation import (
    CommandGroup,
    ExplainCommand,
    PlainCommand,
    SftCommand,
    ShowGroup,
    TrainAsyncCommand,
    TrainCommand,
    Typed,
)
from miles_cli.source_options import (
    THIS_COMMAND_PANEL,
    Changed,
    CommandArgument,
    ConfigFiles,
    Format,
    HelpAll,
    PlainFormat,
    Preset,
    ValidateFormat,
    command_words,
    configuration_words,
    option_words,
)

config_app = typer.Typer(name="config", cls=CommandGroup, help="See what a command would run with, and why.")
show_app = typer.Typer(
    name="show",
    cls=ShowGroup,
    invoke_without_command=True,
    help="Every option with its value and where the value came from. Name a command to give its options, too, or the folder "
    "of a run to see what it used.",
)
config_app.add_typer(show_app)


@config_app.callback(invoke_without_command=True)
def _config(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        ctx.get_help()


@show_app.callback()
def show(
    ctx: typer.Context,
    preset: Preset = None,
    config: ConfigFiles = None,
    changed: Changed = False,
    format: Format = "auto",
) -> None:
    """Show what the sources yield for the command that they are about."""
    from miles_cli.showing import show_overview, sources_of

    if ctx.invoked_subcommand is None:
        show_overview(sources_of(Typed({}), preset, config), format, changed=changed)


@show_app.command("train", cls=TrainCommand, help="What `miles train` would run with.")
def show_train(
    ctx: typer.Context,
    preset: Preset = None,
    config: ConfigFiles = None,
    changed: Changed = False,
    format: Format = "auto",
    help_all: HelpAll = False,
) -> None:
    """Show the configuration of ``miles train``."""
    from miles_cli.showing import show_command, sources_of

    show_command("train", sources_of(ctx.obj, preset, config), format, changed=changed)


@show_app.command("train-async", cls=TrainAsyncCommand, help="What `miles train-async` would run with.")
def show_train_async(
    ctx: typer.Context,
    preset: Preset = None,
    config: ConfigFiles = None,
    changed: Changed = False,
    format: Format = "auto",
    help_all: HelpAll = False,
) -> None:
    """Show the configuration of ``miles train-async``."""
    from miles_cli.showing import show_command, sources_of

    show_command("train-async", sources_of(ctx.obj, preset, config), format, changed=changed)


@show_app.command("sft", cls=SftCommand, help="What `miles sft` would run with.")
def show_sft(
    ctx: typer.Context,
    preset: Preset = None,
    config: ConfigFiles = None,
    changed: Changed = False,
    format: Format = "auto",
    help_all: HelpAll = False,
) -> None:
    """Show the configuration of ``miles sft``."""
    from miles_cli.showing import show_command, sources_of

    show_command("sft", sources_of(ctx.obj, preset, config), format, changed=changed)


@show_app.command("folder", cls=PlainCommand, hidden=True, help="What a run used.")
def show_folder(
    folder: Annotated[str, typer.Argument(metavar="FOLDER")], changed: Changed = False, format: Format = "auto"
) -> None:
    """Show the recorded configuration of a run."""
    from miles_cli.showing import show_run_folder

    show_run_folder(Path(folder), format, changed=changed)


@config_app.command("presets", cls=PlainCommand)
def presets() -> None:
    """The recipes that come with miles."""
    from miles_cli.showing import list_presets

    list_presets()


@config_app.command("explain", cls=ExplainCommand, context_settings={"ignore_unknown_options": True})
def explain(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="A flag, a file key, a variable, or an argument of a server (sglang.NAME, router.NAME).",
            autocompletion=option_words,
        ),
    ],
    preset: Preset = None,
    config: ConfigFiles = None,
    format: PlainFormat = "plain",
) -> None:
    """One option: meaning, range, default, spellings, owners, its value now and where that came from."""
    from miles_cli.explaining import explain as explain_option
    from miles_cli.showing import sources_of

    explain_option(key, sources_of(Typed({}), preset, config), format)


@config_app.command("search", cls=PlainCommand)
def search(words: Annotated[list[str], typer.Argument(metavar="WORDS")]) -> None:
    """The options whose name or meaning holds all of the words."""
    from miles_cli.explaining import search as search_options

    search_options(words)


@config_app.command("diff", cls=PlainCommand)
def diff(
    first: Annotated[
        str, typer.Argument(metavar="A", help="A file, a preset or a run folder.", autocompletion=configuration_words)
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.", autocompletion=configuration_words)],
    command: Annotated[
        str | None,
        typer.Option(
            "--command",
            metavar="COMMAND",
            help="Resolve files and presets for train or train-async; by default the one they are about.",
            rich_help_panel=THIS_COMMAND_PANEL,
            autocompletion=command_words,
        ),
    ] = None,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit 0 even if they differ.", rich_help_panel=THIS_COMMAND_PANEL)
    ] = False,
    format: PlainFormat = "plain",
) -> None:
    """What differs between two configurations, resolved, with both origins; exit code 1 if anything does."""
    from miles_cli.comparing import diff as print_differences

    differ = print_differences(first, second, command, format)
    raise typer.Exit(1 if differ and not exit_zero else 0)


@config_app.command("validate", cls=PlainCommand)
def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE")],
    paths: Annotated[
        bool,
        typer.Option(
            "--paths/--no-paths", help="Also look for the files and folders that they name.", rich_help_panel=THIS_COMMAND_PANEL
        ),
    ] = True,
    format: ValidateFormat = "plain",
) -> None:
    """Everything that is wrong with configuration files, each at its line; exit code 2 if anything is."""
    from miles_cli.validating import validate as print_problems

    raise typer.Exit(0 if print_problems(files, format, paths_too=paths) else 2)


@config_app.command("schema", cls=PlainCommand)
def schema(command: CommandArgument = None) -> None:
    """JSON Schema of configuration files, for editors and other tools."""
    from miles_cli.starting import print_schema

    print_schema(command)


@config_app.command("init", cls=PlainCommand)
def init(command: CommandArgument = None, preset: Preset = None) -> None:
    """A commented file to start from: miles config init train > miles.toml."""
    from miles_cli.starting import print_starter

    print_starter(command, preset)
