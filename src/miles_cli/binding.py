"""Options as Typer sees them: made from the registry, split into words, and nothing else.

Typer gets no defaults, no types and no variables. What was typed goes to the resolver as text, so that a flag, a file
key and a variable are judged by the same rules and refused with the same words.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer import core

from miles.config.registry import Option, all_options, find_option, option_name, options_of
from miles.config.sources import FlagValue
from miles_cli.describe import facts, is_plain_switch

TYPED = "miles_cli.typed"  # key in the context's ``meta``
TEXT = core.TypeDescriptor(str, typer.Option(), None)  # type: ignore[attr-defined]
SWITCH = core.TypeDescriptor(bool, typer.Option(), None)  # type: ignore[attr-defined]


class BoundOption(core.TyperOption):
    """One option of the registry on one command.

    hidden: the option belongs to the other command; it is read only to say so.
    """

    def __init__(self, option: Option, *, hidden: bool) -> None:
        self.option = option
        self.usual = option.meta.usual
        self.facts = facts(option)
        is_switch = option.shape.scalar is bool
        negative = f"/{option.negative_flag}" if is_plain_switch(option) else ""
        super().__init__(
            param_decls=[option.name, option.flag + negative],
            type_descriptor=SWITCH if is_switch else TEXT,
            is_flag=is_switch,
            multiple=option.shape.repeated,
            nargs=2 if option.shape.pairs else 1,
            metavar=option.metavar,
            help=option.help,
            hidden=hidden,
            rich_help_panel=option.panel,
            expose_value=False,
        )

    def add_to_parser(self, parser: Any, ctx: Any) -> None:
        """Have every occurrence collected, so that a flag given twice can say so; the last one counts."""
        repeated, self.multiple = self.multiple, True
        super().add_to_parser(parser, ctx)
        self.multiple = repeated

    def process_value(self, ctx: Any, value: Any) -> None:
        """Note what was typed, as typed; ``value`` holds every occurrence."""
        if not value:
            return
        noted = FlagValue(tuple(value), self.option.flag) if self.multiple else self._last(value)
        ctx.meta.setdefault(TYPED, {})[self.name] = noted

    def _last(self, values: Sequence[Any]) -> FlagValue:
        flags = [FlagValue(value, self.option.negative_flag if value is False else self.option.flag) for value in values]
        return flags[-1]._replace(earlier=tuple(flags[:-1]))

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The option's choices, names in the user's code, runs, checkpoints, or a server's arguments."""
        from miles_cli.offers import checkpoints, dotted_paths, run_folders, server_argument_names

        if self.option.meta.kind == "arguments":
            return [Word(*offer) for offer in server_argument_names(self.option.name)]
        if self.option.meta.kind == "dotted":
            return [Word(*offer) for offer in dotted_paths(incomplete)]
        by_name = {"run_dir": run_folders, "load": checkpoints}
        if self.name in by_name:
            return [Word(*offer) for offer in by_name[self.name](incomplete)]
        return [Word(str(choice)) for choice in self.option.choices]


class Word:
    """A completion, in the form that Typer uses."""

    def __init__(self, value: str, help: str = "") -> None:
        self.value = value
        self.help = help


def bound_options(command: str) -> list[BoundOption]:
    """A command's options, panel by panel, then the other command's, hidden."""
    own = options_of(command)
    names = {option.name for option in own}
    foreign = [option for option in all_options() if option.name not in names]
    return [BoundOption(o, hidden=False) for o in own] + [BoundOption(o, hidden=True) for o in foreign]


def typed_flags(meta: Mapping[str, Any], unknown: Sequence[str]) -> tuple[dict[str, FlagValue], list[str]]:
    """What was typed, for the resolver, and the words that are neither flags nor their values.

    unknown: the words that Typer could not place, in order; ``--lerning-rate 3`` gives an unknown flag with a value, and
        ``--fully_async`` the option that it spells otherwise.
    """
    flags: dict[str, FlagValue] = dict(meta.get(TYPED, {}))
    stray: list[str] = []
    words = list(unknown)
    while words:
        flag, equals, value = words.pop(0).partition("=")
        if not _is_flag(flag):
            stray.append(flag + equals + value)
            continue
        option = find_option(flag)
        wanted = 1 if option is None else 0 if option.shape.scalar is bool else 2 if option.shape.pairs else 1
        values = [value] if equals else []
        while len(values) < wanted and words and not _is_flag(words[0]):
            values.append(words.pop(0))
        name = option_name(flag)
        flags[name] = _spelt_otherwise(option, flag, values, flags.get(name))
    return flags, stray


def _is_flag(word: str) -> bool:
    """Whether a word begins an option: ``-`` and ``-1`` do not."""
    return len(word) > 1 and word[0] == "-" and not word[1].isdigit()


def _spelt_otherwise(option: Option | None, flag: str, values: Sequence[str], before: FlagValue | None) -> FlagValue:
    """A flag that Typer does not know, as it would have noted it: ``--fully_async``, ``--eval_prompt_data a b``."""
    text = values[0] if values else ""
    if option is None:
        return FlagValue(text, flag)
    if option.shape.scalar is bool:
        return FlagValue(text if values else flag.replace("_", "-") == option.flag, flag)
    if not option.shape.repeated:
        earlier = (*before.earlier, before._replace(earlier=())) if before else ()
        return FlagValue(text, flag, earlier)
    item: Any = tuple(values) if option.shape.pairs and len(values) == 2 else text
    return FlagValue((*(before.value if before else ()), item), flag)
