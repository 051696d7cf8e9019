"""``--help`` of a command with many options: two columns in panels, folded to the width, never cut."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from miles_cli.source_options import SOURCES_PANEL, THIS_COMMAND_PANEL

if TYPE_CHECKING:
    from rich.console import Console

PANELS = (
    SOURCES_PANEL, THIS_COMMAND_PANEL, "Model and checkpoints", "Data", "Sampling", "Reward", "Rollout", "Asynchrony",
    "Fully async", "Algorithm", "Optimiser", "Evaluation", "Cluster", "Engine", "Run",
)  # fmt: skip
NARROW = 100  # columns
FLAG_WIDTH = {True: 34, False: 46}


def panel_order(name: str) -> int:
    """Where a panel stands; one that nobody has placed comes last."""
    return PANELS.index(name) if name in PANELS else len(PANELS)


def print_help(command: Any, ctx: Any, *, everything: bool, console: "Console | None" = None) -> None:
    """Usage, what the command does, and its options; the usual ones, or all."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console(highlight=False)
    shown = [p for p in command.get_params(ctx) if p.param_type_name == "option" and not p.hidden]
    rest = [] if everything else [p for p in shown if not getattr(p, "usual", True)]
    console.print(Text.assemble(("Usage: ", "yellow"), (f"{ctx.command_path} [OPTIONS]", "bold")))
    console.print()
    for paragraph in (command.help or "").split("\n\n"):
        console.print(Text(" ".join(paragraph.split())))
        console.print()
    panels: dict[str, list[Any]] = {}
    for param in shown:
        if param not in rest:
            panels.setdefault(param.rich_help_panel or THIS_COMMAND_PANEL, []).append(param)
    for name in sorted(panels, key=panel_order):
        _print_panel(console, name, panels[name])
    if rest:
        console.print(Text(f"{len(rest)} more options: {ctx.command_path} --help-all", style="bold"))


def _print_panel(console: "Console", name: str, params: Sequence[Any]) -> None:
    from rich import box
    from rich.panel import Panel
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(width=FLAG_WIDTH[console.width < NARROW], overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    for param in params:
        table.add_row(*_cells(param))
    console.print(Panel(table, title=name, title_align="left", border_style="dim", box=box.ROUNDED))


def _cells(param: Any) -> tuple[Any, Any]:
    from rich.text import Text

    flag = Text(param.opts[0], style="bold cyan")
    about = Text(param.help or "")
    choices = param.option.choices if hasattr(param, "option") else ()
    if choices:
        about.append(" ")
        about.append("|".join(str(choice) for choice in choices), style="yellow")
    elif param.metavar:
        flag.append(f" {param.metavar}", style="yellow not bold")
    if facts := "; ".join(getattr(param, "facts", ())):
        about.append(f" [{facts}]", style="dim")
    return flag, about
