"""The options that are about sources and output, beside the options of a run; shared by the commands that take them."""

from typing import Annotated, Any

import typer

SOURCES_PANEL = "Where values come from"
THIS_COMMAND_PANEL = "This command"


def _preset_words() -> list[tuple[str, str]]:
    from miles.config.presets import preset_description, preset_names

    return [(name, preset_description(name)) for name in preset_names()]


def _format_words() -> list[tuple[str, str]]:
    return [(word, "") for word in FORMATS]


def _print_all_help(ctx: typer.Context, value: bool) -> None:
    if value:
        from miles_cli.help_screen import print_help

        command: Any = ctx.command
        print_help(command, ctx, everything=True)
        raise typer.Exit


DATA_FORMATS = ("toml", "json")
FORMATS = ("auto", "table", "plain", *DATA_FORMATS)
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="A recipe that comes with miles; everything below overrides it. `miles config presets` lists them.",
        rich_help_panel=SOURCES_PANEL,
        autocompletion=_preset_words,
    ),
]
ConfigFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file with options as keys; a later file wins. Then come MILES_… variables, then flags. May be repeated.",
        rich_help_panel=SOURCES_PANEL,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Check everything that can be checked, print the configuration and the plan, start nothing.",
        rich_help_panel=THIS_COMMAND_PANEL,
    ),
]
HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        help="Show every option.",
        rich_help_panel=THIS_COMMAND_PANEL,
        is_eager=True,
        callback=_print_all_help,
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="WORD",
        help="auto (a table on a terminal, plain lines elsewhere), table, plain, toml or json.",
        rich_help_panel=THIS_COMMAND_PANEL,
        autocompletion=_format_words,
    ),
]
