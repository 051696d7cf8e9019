"""Errors on the screen: every problem with its origin, the reason and the way out; no traceback."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from miles.errors import ConfigError, Problem

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def print_error(error: Exception, console: "Console | None" = None) -> None:
    """Show an error on stderr: a panel on a terminal, plain lines elsewhere."""
    from rich.console import Console

    console = console or Console(stderr=True, highlight=False, emoji=False)
    problems, notes = (error.problems, error.notes) if isinstance(error, ConfigError) else ((), ())
    if console.is_terminal:
        _print_panel(console, problems, _sentence(error), notes)
        return
    lines = [*plain_problems(problems), *notes] if problems else [f"error: {_sentence(error)}"]
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def count(problems: Sequence[Problem]) -> str:
    """``1 problem``, ``3 problems``."""
    return f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"


def plain_problems(problems: Sequence[Problem]) -> list[str]:
    """Two lines for each problem, after their number."""
    lines = [f"error: {count(problems)}"]
    for problem in problems:
        given = f" = {problem.value}" if problem.value else ""
        origin = f" ({problem.origin})" if problem.origin else ""
        lines += [f"  {problem.option}{given}{origin}: {problem.why}", f"    -> {problem.remedy}"]
    return lines


def _print_panel(console: "Console", problems: Sequence[Problem], text: str, notes: Sequence[str]) -> None:
    from rich import box
    from rich.console import Group
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.text import Text

    body: list[RenderableType] = [Text(text)] if not problems else []
    for problem in problems:
        head = Text(problem.option, style="bold")
        head.append(f" = {problem.value}" if problem.value else "", style="bold red")
        head.append(f"  {problem.origin}" if problem.origin else "", style="dim")
        remedy = Text(f"→ {problem.remedy}", style="green")
        body += [head, Padding(Group(Text(problem.why), remedy), (0, 0, 0, 2)), Text("")]
    body += [Text(note, style="dim") for note in notes]
    if problems and not notes:
        body.pop()
    title = count(problems) if problems else "error"
    console.print(Panel(Group(*body), title=title, title_align="left", border_style="red", box=box.ROUNDED))


def _sentence(error: Exception) -> str:
    """The error's own words; where a command line could not be read, also where to look."""
    context, param = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None:
        return str(error)
    text = str(error).rstrip(".")
    if param is not None:  # the parser names no option for a value of the wrong type, and no argument as help does
        name = param.opts[0] if param.param_type_name == "option" else param.metavar
        text = f"{name} is missing" if text.startswith("Missing") else f"{name}: {text.replace('Input should', 'must')}"
    return f"{text}{'' if text.endswith('?') else '.'} See `{context.command_path} --help`."
