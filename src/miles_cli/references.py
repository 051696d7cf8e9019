"""``docs/config.md``: every option with its flag, key, variable, default and bounds; and the other generated pages.

python -m miles_cli.references            write the pages
python -m miles_cli.references --check    exit 1 if a page is not what would be written
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from miles.config.commands import COMMANDS, WITH_ROLLOUTS
from miles.config.registry import Option, all_options
from miles.config.schema import json_schema
from miles.config.starter import SCHEMA_FILE
from miles_cli import metrics_page, old_names_page
from miles_cli.completion import VARIABLE
from miles_cli.describe import conditions, spell_bounds, spell_defaults
from miles_cli.help_screen import panel_order
from miles_cli.shells import SCRIPTS, script_of

PAGE = Path("docs/config.md")
INTRODUCTION = """\
# Options

Written by `python -m miles_cli.references` from the option sets in `src/miles/config/options`; do not edit by hand.

An option has one name and three spellings: the flag `--max-weight-staleness`, the file key `max_weight_staleness`, the
variable `MILES_MAX_WEIGHT_STALENESS`. Values come from, later ones winning: defaults, `--preset`, `--config` files in
order, variables, flags. All of them are merged first and checked once, so that a mistake is refused with the same words
wherever it was made, together with all other mistakes, before anything is started.

* `miles config show train …` prints every value with its origin; `miles train … --dry-run` also checks the machine-free
  rest and prints the plan.
* A switch is turned off by `--no-…`, or by `false` in a file. `none` unsets an option that may be unset.
* An option that may be repeated is a list in a file (`rollout_stop = ["\\n"]`) and separated by commas in a variable.
  Pairs are a table in a file: `eval_prompt_data = { reverse = "heldout.jsonl" }`.
* Keys of a file count for every command; those under `[train]`, `[train-async]`, `[train-async.fully-async]` or `[sft]` only
  when that command or schedule runs. Relative paths are relative to the working directory, those of a preset to its file.
* Two files count without being named on the command line: `miles.toml` in the working directory, and those in
  `$MILES_CONFIG` (several are separated by `:`). They stand below `--config` files and are named in the output.
* A run that is started again in its folder compares every option with what it was started with. *Safe on resume* marks
  those that may change, *fixed on resume* those that what is on disk rests on; every other one changes the course of the
  run and is taken with `--accept-changes` only. `--dry-run` prints the difference.
"""
RESUME_WORDS = {"safe": "*Safe on resume.*", "impossible": "*Fixed on resume.*"}


def page() -> str:
    """The text of ``docs/config.md``."""
    panels: dict[str, list[Option]] = {}
    for option in all_options():
        panels.setdefault(option.panel, []).append(option)
    sections = [_section(name, panels[name]) for name in sorted(panels, key=panel_order)]
    return "\n".join([INTRODUCTION, *sections])


def _section(name: str, options: list[Option]) -> str:
    rows = [
        f"| `{option.flag}` | {_value(option)} | {spell_defaults(option, mark='`')} | {_commands(option)} | {_about(option)} |"
        for option in options
    ]
    head = ["| option | value | default | command | |", "|---|---|---|---|---|"]
    return "\n".join([f"## {name}", "", *head, *rows, ""])


def _value(option: Option) -> str:
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    kind = (option.metavar or "switch").lower()
    bounds = spell_bounds(option)
    return f"{kind}, {bounds}" if bounds else kind


def _commands(option: Option) -> str:
    if option.commands == tuple(WITH_ROLLOUTS):
        return "both"
    return "all" if len(option.commands) == len(COMMANDS) else ", ".join(f"`{command}`" for command in option.commands)


def _about(option: Option) -> str:
    parts = [option.help]
    if text := conditions(option):
        parts.append(f"Counts {text}.")
    if option.shape.repeated:
        parts.append("May be repeated.")
    if option.meta.on_resume != "course":
        parts.append(RESUME_WORDS[option.meta.on_resume])
    return " ".join(parts).replace("|", "\\|")


def schema() -> str:
    """The text of ``docs/miles.schema.json``."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


PAGES: dict[Path, Callable[[], str]] = {
    PAGE: page,
    old_names_page.PAGE: old_names_page.page,
    metrics_page.PAGE: metrics_page.page,
    Path("docs") / SCHEMA_FILE: schema,
    **{Path(f"docs/completion/miles.{shell}"): partial(script_of, shell, VARIABLE) for shell in SCRIPTS},
}


def main(check: Annotated[bool, typer.Option("--check", help="Compare, and write nothing.")] = False) -> None:
    """Write the pages, or check them."""
    stale = [path for path, text in PAGES.items() if not path.exists() or path.read_text() != text()]
    if not check:
        for path in stale:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(PAGES[path]())
    elif stale:
        names = ", ".join(map(str, stale))
        typer.echo(f"not what the option sets say: {names}. Run: python -m miles_cli.references", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
