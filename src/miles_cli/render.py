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


def print_rows(rows: Sequence[Row], console: "Console", *, as_table: bool) -> None:
    """Every row, by panel."""
    if as_table:
        _print_tables(rows, console)
    else:
        console.print("\n".join(plain_rows(rows)), markup=False, highlight=False, soft_wrap=True)


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


def _print_tables(rows: Sequence[Row], console: "Console") -> None:
    from rich import box
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    width = max((len(row.option) for row in rows), default=0)
    name_width = min(width, max(console.width // 3, 12))
    for panel, members in by_panel(rows).items():
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        table.add_column(width=name_width, overflow="fold")
        table.add_column(ratio=2, overflow="fold")
        table.add_column(ratio=3, overflow="fold")
        for row in members:
            style = _style(row)
            name, value = Text(row.option, style=style), Text(shown_value(row), style=style)
            table.add_row(name, value, Text(row.origin, style="dim" if row.derived else ""))
        console.print(Panel(table, title=panel, title_align="left", border_style="dim", box=box.ROUNDED))


def _style(row: Row) -> str:
    if row.derived:
        return "dim"
    return "" if is_default(row) else "bold cyan"


def is_default(row: Row) -> bool:
    """Whether nobody has said anything about the option."""
    return not row.derived and (not row.chain or row.chain[0].origin.kind == "default")
