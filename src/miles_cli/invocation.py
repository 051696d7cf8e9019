"""The command classes of Typer that miles needs: options bound when they are first asked for, own help and errors."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from miles.config.sources import FlagValue
from miles.errors import ConfigError, MilesError, Problem


@dataclass(frozen=True, slots=True)
class Typed:
    """The options a user typed after ``miles train`` or another command that takes them."""

    flags: dict[str, FlagValue]


class OwnHelp:
    """Help as ``help_screen`` draws it; Typer's own takes twice as long to import."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """What the command does and takes."""
        from miles_cli.help_screen import print_help

        print_help(self, ctx)


class PlainCommand(OwnHelp, TyperCommand):
    """A command with a few options of its own."""


class ExplainCommand(PlainCommand):
    """``miles config explain KEY``: the only word is what is asked about, also where it is a flag of the command itself."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the words."""
        if len(args) == 1 and args[0].startswith("--") and args[0] != "--help":
            args = ["--", *args]
        return list(super().parse_args(ctx, args))


class CommandGroup(OwnHelp, TyperGroup):
    """A command with commands below it."""


class OptionsCommand(OwnHelp, TyperCommand):
    """A command that takes every option of a command with rollouts, or of ``miles sft``.

    Words that fit no option are kept for the resolver, which knows where they belong.
    """

    ignore_unknown_options = True
    allow_extra_args = True
    option_owner = ""
    _bound: list[Any] | None = None

    def get_params(self, ctx: Any) -> list[Any]:
        """The command's own parameters, the bound options, then ``--help``."""
        if self._bound is None:
            from miles_cli.binding import bound_options

            self._bound = list(bound_options(self.option_owner))
            self.params = [*self.params, *self._bound]
        return list(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the words; leave what was typed in ``ctx.obj``."""
        from miles_cli.binding import typed_flags

        try:
            rest = super().parse_args(ctx, args)
        except typer.TyperException as error:
            raise _unsplit(error) from None
        flags, stray = typed_flags(ctx.meta, rest)
        if stray:
            raise ConfigError([_stray(word, ctx.command_path) for word in stray])
        ctx.obj = Typed(flags)
        return []


class TrainCommand(OptionsCommand):
    """Takes the options of ``miles train``."""

    option_owner = "train"


class TrainAsyncCommand(OptionsCommand):
    """Takes the options of ``miles train-async``."""

    option_owner = "train-async"


class SftCommand(OptionsCommand):
    """Takes the options of ``miles sft``."""

    option_owner = "sft"


class SimulateCommand(TrainAsyncCommand):
    """Takes the options of both commands; which schedule has which is decided when they are resolved."""


class ShowGroup(CommandGroup):
    """``miles config show``: a run folder may stand for the command; without one it takes no options of a run, and says so."""

    folder_command = "folder"

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command named, or the one that shows a run folder."""
        if args[0] in self.commands or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        return self.folder_command, self.commands[self.folder_command], args

    def more_words(self, incomplete: str) -> "Iterator[tuple[str, str]]":
        """Run folders, which Tab offers beside the commands."""
        from miles_cli.offers import run_folders

        return run_folders(incomplete)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the words."""
        from miles.config.registry import find_option

        flag = next((word.partition("=")[0] for word in args if word.startswith("--")), "")
        try:
            return list(super().parse_args(ctx, args))
        except typer.TyperException:
            if (option := find_option(flag)) is None:
                raise
            remedy = f"Run: {ctx.command_path} {option.commands[0]} {option.flag} …"
            why = "is an option of a command, and none is named"
            raise ConfigError([Problem(option.name, "", option.flag, why, remedy)]) from None


class RootGroup(CommandGroup):
    """``miles`` itself: answers Tab, and shows every error as a sentence with its exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and exit as the process should."""
        from miles_cli.completion import VARIABLE

        if (request := os.environ.get(VARIABLE)) is not None:
            _answer_tab(self, request)
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            code = super().main(args, prog_name or "miles", complete_var, False, windows_expand_args, **extra)
        except (MilesError, typer.TyperException) as error:
            from miles_cli.problems import print_error

            print_error(error)
            sys.exit(error.exit_code)
        except typer.Abort:
            sys.exit(130)
        sys.exit(code or 0)


def _answer_tab(root: TyperGroup, request: str) -> NoReturn:
    from miles_cli.completion import answer

    sys.stdout.write(answer(root, request) + "\n")
    sys.exit(0)


def _unsplit(error: typer.TyperException) -> Exception:
    """The error of a flag whose value is missing, or too many, in the words of the resolver."""
    from miles.config.registry import find_option

    flag = str(getattr(error, "option_name", ""))
    option = find_option(flag)
    if option is None:
        return error
    if option.shape.scalar is bool:
        remedy = f"Write {option.flag}{f' or {option.negative_flag}' if not option.meta.selector else ', or leave it out'}"
        return ConfigError([Problem(option.name, "", flag, "is a switch and takes no value", remedy)])
    return ConfigError([Problem(option.name, "", flag, "needs a value", f"Write {option.flag} {option.metavar}")])


def _stray(word: str, command: str) -> Problem:
    return Problem(word, "", "command line", "is neither an option nor the value of one", f"See `{command} --help`.")
