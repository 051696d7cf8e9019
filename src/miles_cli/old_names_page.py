"""``docs/coming-from-slime.md``: what became of the options that users of slime and miles know."""

from collections.abc import Iterator
from pathlib import Path

from miles.config.old_names import Fate, OldName, old_names
from miles_cli.wording import table_cell

PAGE = Path("docs/coming-from-slime.md")
INTRODUCTION = """\
# Coming from slime or miles

Written by `python -m miles_cli.references` from `src/miles/config/old_names.toml`; do not edit by hand.

Names that you know are kept wherever they mean the same. Two things are different in kind: which schedule runs is said by
the command (`miles train`, `miles train-async`, `--fully-async`) and not by a function's path or a variable, and no option
rewrites another. Typing an old name is refused with the new one.

SGLang's own server arguments are passed as `--sglang NAME VALUE` or in a table `[sglang]` of a file:
`--sglang-mem-fraction-static 0.7` is `--sglang mem-fraction-static 0.7`.
"""
HEADINGS: dict[Fate, str] = {
    "renamed": "Renamed",
    "folded": "Folded into a choice",
    "absent": "Not here",
    "kept": "Kept",
}


def page() -> str:
    """The text of the page."""
    return "\n".join([INTRODUCTION, *(line for fate in HEADINGS for line in _section(fate))])


def _section(fate: Fate) -> Iterator[str]:
    names = sorted((name for name in old_names().values() if name.fate == fate), key=lambda name: name.name)
    yield f"## {HEADINGS[fate]}\n"
    if fate == "kept":
        yield from (
            "| option | to know |",
            "|---|---|",
            *(f"| `{_flag(name.name)}` | {table_cell(name.why)} |" for name in names),
        )
    elif fate == "absent":
        yield from ("| old | why not |", "|---|---|", *_by_reason(names))
    else:
        head = ("| old | now | why |", "|---|---|---|")
        yield from (
            *head,
            *(f"| `{_flag(name.name)}` | `{name.instead(as_flag=True)}` | {table_cell(name.why)} |" for name in names),
        )
    yield ""


def _by_reason(names: list[OldName]) -> Iterator[str]:
    for why in dict.fromkeys(name.why for name in names):
        flags = ", ".join(f"`{_flag(name.name)}`" for name in names if name.why == why)
        yield f"| {flags} | {table_cell(why)} |"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
