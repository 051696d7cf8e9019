"""The resolved configuration on the screen: a table by panel on a terminal, ``key = value  # origin`` lines elsewhere.

A value is never cut: the table folds, the lines run on.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from miles.config.resolution import Row
from miles_cli.help_screen import panel_order
from miles_cli.wording import shown_value

if TYPE_CHECKING:
    from rich.console import Console


def print_rows(rows: Sequence[Row], console: "Console", *, as_table: bool, title: str = "", footer: str = "") -> None:
    """Every row, by panel, under a title."""
    if as_table:
        _print_table(rows, console, title, footer)
        return
    lines = [*([title] if title else []), *plain_rows(rows), *([footer] if footer else [])]
    console.print("\n".join(lines), markup=False, highlight=False, emoji=False, soft_wrap=True)


def by_panel(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows under their panels, in the order of ``--help``."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(row.panel, []).append(row)
    return {name: panels[name] for name in sorted(panels, key=panel_order)}


def plain_rows(rows: Sequence[Row]) -> list[str]:
    """``lr = 0.0003  # preset reverse``, with the panels as comments; valid for a reader, not for a TOML parser."""
    lines: list[str] = []
    for panel, members in by_panel(rows).items():
        lines += ["", f"# {panel}"] if lines else [f"# {panel}"]
        for row in members:
            mark = "derived: " if row.derived else ""
            comment = f"  # {mark}{row.origin}" if row.origin else ""
            lines.append(f"{row.option} = {shown_value(row)}{comment}")
    return lines


def _print_table(rows: Sequence[Row], console: "Console", title: str, footer: str) -> None:
    from rich import box
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    widest = min(max((len(row.option) for row in rows), default=0) + 2, max(console.width * 2 // 5, 12))
    table.add_column(width=widest, overflow="fold")
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for panel, members in by_panel(rows).items():
        table.add_row(Text(panel, style="bold"), "", "")
        for row in members:
            style = _style(row)
            name, value = Text(f"  {row.option}", style=style), Text(shown_value(row), style=style)
            table.add_row(name, value, Text(row.origin, style="dim" if row.derived else ""))
    head = [Text(title, style="bold"), Text("")] if title else []
    foot = [Text(""), Text(footer, style="dim")] if footer else []
    console.print(Panel(Group(*head, table, *foot), border_style="dim", box=box.ROUNDED))


def _style(row: Row) -> str:
    if row.derived:
        return "dim"
    return "" if is_default(row) else "bold cyan"


def is_default(row: Row) -> bool:
    """Whether nobody has said anything about the option."""
    return not row.derived and (not row.chain or row.chain[0].origin.kind == "default")


def differs(row: Row) -> bool:
    """Whether an option's value is another than the default's."""
    if row.derived:
        return False
    return not row.chain or row.chain[-1].origin.kind != "default" or row.value != row.chain[-1].value
