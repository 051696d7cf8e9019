"""``--help`` of a command with many options: two columns in panels, folded to the width, never cut."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from miles_cli.source_options import SOURCES_PANEL, THIS_COMMAND_PANEL

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PANELS = (
    SOURCES_PANEL, THIS_COMMAND_PANEL, "Model and checkpoints", "LoRA", "Data", "Sampling", "Reward", "Rollout", "Asynchrony",
    "Fully async", "Algorithm", "Critic", "Optimiser", "Evaluation", "Cluster", "Engine", "Run",
)  # fmt: skip
FIRST_COMMANDS = ("train", "train-async", "sft", "config", "runs", "list", "show", "explain")
NARROW = 100  # columns
FLAG_WIDTH = {True: 36, False: 50}


def panel_order(name: str) -> int:
    """Where a panel stands; one that nobody has placed comes last."""
    return PANELS.index(name) if name in PANELS else len(PANELS)


def print_help(command: Any, ctx: Any, *, everything: bool = False, console: "Console | None" = None) -> None:
    """Usage, what the command does, what is below it, and its options; the usual ones, or all."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console(highlight=False, emoji=False)
    below = [(name, child) for name, child in getattr(command, "commands", {}).items() if not child.hidden]
    below.sort(key=lambda item: FIRST_COMMANDS.index(item[0]) if item[0] in FIRST_COMMANDS else len(FIRST_COMMANDS))
    params = command.get_params(ctx)
    arguments = [param for param in params if param.param_type_name == "argument"]
    usage = " ".join([ctx.command_path, "[OPTIONS]", *map(_usage, arguments), *(["COMMAND …"] if below else [])])
    console.print(Text.assemble(("Usage: ", "yellow"), (usage, "bold")))
    console.print()
    for paragraph in (command.help or "").split("\n\n"):
        console.print(Text(" ".join(paragraph.split())))
        console.print()
    if below:
        names = [(Text(name, style="bold cyan"), Text(child.get_short_help_str(limit=200))) for name, child in below]
        _print_panel(console, "Commands", names, max(len(name) for name, _ in below))
    if told := [(Text(_usage(param), style="bold cyan"), Text(param.help)) for param in arguments if param.help]:
        _print_panel(console, "Arguments", told, max(len(name) for name, _ in told))
    shown = [p for p in params if p.param_type_name == "option" and not p.hidden]
    usual = [p for p in shown if everything or getattr(p, "usual", True)]
    panels: dict[str, list[Any]] = {}
    for param in usual:
        panels.setdefault(param.rich_help_panel or THIS_COMMAND_PANEL, []).append(param)
    width = min(max(len(_label(p)) for p in usual), FLAG_WIDTH[console.width < NARROW])
    for name in sorted(panels, key=panel_order):
        _print_panel(console, name, [_cells(param) for param in panels[name]], width)
    if rest := len(shown) - len(usual):
        console.print(Text(f"{rest} more options: {ctx.command_path} --help-all", style="bold"))


def _usage(argument: Any) -> str:
    """``KEY``, ``[COMMAND]``, ``FILE…``."""
    word = f"{argument.metavar}{'…' if argument.nargs == -1 else ''}"
    return word if argument.required else f"[{word}]"


def _print_panel(console: "Console", name: str, rows: Sequence[tuple["Text", "Text"]], width: int) -> None:
    from rich import box
    from rich.panel import Panel
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(width=width, overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(Panel(table, title=name, title_align="left", border_style="dim", box=box.ROUNDED))


def _metavar(param: Any) -> str:
    """What stands for the value beside the flag; choices stand in the text."""
    chosen = hasattr(param, "option") and param.option.choices
    return "" if param.is_flag or chosen else param.metavar or ""


def _label(param: Any) -> str:
    return f"{param.opts[0]} {_metavar(param)}".rstrip()


def _cells(param: Any) -> "tuple[Text, Text]":
    from rich.text import Text

    flag = Text.assemble((param.opts[0], "bold cyan"), (f" {_metavar(param)}".rstrip(), "yellow"))
    about = Text(param.help or "")
    if hasattr(param, "option") and param.option.choices:
        about.append(" ")
        about.append("|".join(str(choice) for choice in param.option.choices), style="yellow")
    if facts := "; ".join(getattr(param, "facts", ())):
        about.append(f" [{facts}]", style="dim")
    return flag, about
