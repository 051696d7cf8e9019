"""The options that are about sources and output, beside the options of a run; shared by the commands that take them."""

from pathlib import Path
from typing import Annotated, Any

import typer

SOURCES_PANEL = "Where values come from"
THIS_COMMAND_PANEL = "This command"


def _preset_words() -> list[tuple[str, str]]:
    from miles.config.presets import preset_description, preset_names

    return [(name, preset_description(name)) for name in preset_names()]


def _format_words() -> list[tuple[str, str]]:
    return [(word, "") for word in FORMATS]


def option_words(incomplete: str) -> list[tuple[str, str]]:
    """Every option in the spelling that was begun, for completion."""
    from miles_cli.offers import option_keys

    return list(option_keys(incomplete))


def configuration_words(incomplete: str) -> list[tuple[str, str]]:
    """Presets, run folders and files, for completion."""
    from miles_cli.offers import configurations

    return list(configurations(incomplete))


def run_words(incomplete: str) -> list[tuple[str, str]]:
    """Run folders, for completion."""
    from miles_cli.offers import run_folders

    return list(run_folders(incomplete))


def metric_words(incomplete: str) -> list[tuple[str, str]]:
    """Every metric, for completion."""
    from miles_cli.offers import metric_names

    return list(metric_names())


def step_words(ctx: typer.Context) -> list[tuple[str, str]]:
    """Checkpoints of the run that stands before the cursor, for completion."""
    from miles_cli.offers import checkpoint_steps

    return list(checkpoint_steps(ctx.args[0])) if ctx.args else []


def failed_step_words(incomplete: str) -> list[tuple[str, str]]:
    """Steps that runs have kept because they failed, for completion."""
    from miles_cli.offers import failed_steps

    return list(failed_steps(incomplete))


def command_words() -> list[tuple[str, str]]:
    """The commands that have options, for completion."""
    return [("train", ""), ("train-async", ""), ("sft", "")]


def check_command(word: str) -> None:
    """Refuse a command that has no options.

    Raises:
        ConfigError: with the ones that have.
    """
    names = [name for name, _ in command_words()]
    if word not in names:
        from miles.errors import ConfigError, Problem

        raise ConfigError([Problem("command", word, "", f"is not one of {', '.join(names)}", "Give one of them, or none")])


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
        help="TOML file with options as keys; may be repeated, a later one wins. Below these count `miles.toml` in the working "
        "directory and the files in $MILES_CONFIG, above them MILES_… variables, then flags.",
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
AsJson = Annotated[
    bool,
    typer.Option("--json", help="With --dry-run: configuration and plan as one JSON object.", rich_help_panel=THIS_COMMAND_PANEL),
]
GpuMemory = Annotated[
    float | None,
    typer.Option(
        "--gpu-memory-gib",
        metavar="NUMBER",
        min=1.0,
        help="With --dry-run: plan for GPUs of this size, for a machine elsewhere; by default what nvidia-smi says of this one.",
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
Changed = Annotated[
    bool,
    typer.Option("--changed", help="Only what differs from the defaults.", rich_help_panel=THIS_COMMAND_PANEL),
]


def check_format(word: str, words: tuple[str, ...] = FORMATS) -> None:
    """Refuse a format that there is not.

    Raises:
        ConfigError: with the ones that there are.
    """
    if word not in words:
        from miles.errors import ConfigError, Problem

        raise ConfigError([Problem("format", word, "--format", f"is not one of {', '.join(words)}", "Give one of them")])


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
PlainFormat = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="WORD",
        help="plain or json.",
        rich_help_panel=THIS_COMMAND_PANEL,
        autocompletion=lambda: [("plain", ""), ("json", "")],
    ),
]
ValidateFormat = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="WORD",
        help="plain, json, or github: annotations in a GitHub workflow.",
        rich_help_panel=THIS_COMMAND_PANEL,
        autocompletion=lambda: [("plain", ""), ("json", ""), ("github", "")],
    ),
]
CommandArgument = Annotated[
    str | None,
    typer.Argument(metavar="COMMAND", help="train, train-async or sft.", autocompletion=command_words),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", autocompletion=run_words)]
