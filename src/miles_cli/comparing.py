"""``miles config diff``: what differs between two configurations, with both origins."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles.config.compare import Difference, Side, differences, read_sides
from miles.config.resolution import Row
from miles_cli.showing import console_here
from miles_cli.source_options import check_command, check_format
from miles_cli.wording import shown_value

if TYPE_CHECKING:
    from rich.text import Text


def diff(first: str, second: str, command: str | None, format: str) -> bool:
    """Print what differs; whether anything does.

    Raises:
        ConfigError: a side cannot be read.
    """
    check_format(format, ("plain", "json"))
    if command is not None:
        check_command(command)
    one, other = read_sides(first, second, Path.cwd(), command)
    found = differences(one, other)
    if format == "json":
        console_here().file.write(json.dumps([_data(pair) for pair in found], indent=2, ensure_ascii=False) + "\n")
    else:
        _print(one, other, found)
    return bool(found)


def _print(one: Side, other: Side, found: list[Difference]) -> None:
    from rich.text import Text

    console = console_here()
    lines = [Text(f"--- {one.label}  (miles {one.command})", "red"), Text(f"+++ {other.label}  (miles {other.command})", "green")]
    for pair in found:
        lines += [Text(pair.option, "bold"), _side("-", pair.first, "red"), _side("+", pair.second, "green")]
    if not found:
        lines = [Text(f"{one.label} and {other.label} resolve to the same")]
    for side in (one, other):
        if found and side.needed:
            lines.append(Text(f"{side.label} leaves open: {', '.join(side.needed)}; derived values are not compared", "dim"))
    for line in lines:
        console.print(line, soft_wrap=not console.is_terminal)


def _side(sign: str, row: Row | None, style: str) -> "Text":
    from rich.text import Text

    if row is None:
        return Text(f"  {sign} (does not count)", "dim")
    origin = f"  # {row.origin}" if row.origin else ""
    return Text.assemble((f"  {sign} {shown_value(row)}", style), (origin, "dim"))


def _data(pair: Difference) -> dict[str, Any]:
    sides = {
        name: None if row is None else {"value": row.value, "origin": row.origin}
        for name, row in zip(("first", "second"), pair[1:], strict=True)
    }
    return {"option": pair.option, **sides}
