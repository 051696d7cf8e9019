"""Options of slime and miles by their old names: kept, renamed, folded into a choice, or not here, each with the reason.

The table is ``old_names.toml``, read when a name is met that is no option, so that whoever types an old name is told the
new one; ``docs/coming-from-slime.md`` is written from it too.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from miles.config.registry import option_name, option_table

TABLE = Path(__file__).with_suffix(".toml")
PREFIXES = {"sglang_": "sglang", "router_": "router"}
Fate = Literal["kept", "renamed", "folded", "absent"]


@dataclass(frozen=True, slots=True)
class OldName:
    """What became of an option.

    option: the option that says it now; empty for what is not here.
    value: what that option has to be set to; empty where the user's own value is.
    why: the reason, or for what is kept what to know about it.
    """

    name: str
    fate: Fate
    option: str = ""
    value: str = ""
    why: str = ""

    def instead(self, *, as_flag: bool) -> str:
        """``--off-policy-correction tis``, or ``off_policy_correction = "tis"``."""
        flag = "--" + self.option.replace("_", "-")
        if self.value in ("true", "false"):
            switch = flag if self.value == "true" else flag.replace("--", "--no-", 1)
            return switch if as_flag else f"{self.option} = {self.value}"
        if as_flag:
            return f"{flag} {self.value}".rstrip()
        return f'{self.option} = "{self.value}"' if self.value else self.option


@cache
def old_names() -> Mapping[str, OldName]:
    """Every old name; one that is an option here is kept, wherever the table has it."""
    found = {}
    for name in _read(tomllib.loads(TABLE.read_text())):
        kept = name.name in option_table() and name.fate != "kept"
        found[name.name] = OldName(name.name, "kept", name.name) if kept else name
    return found


def old_name_words(spelling: str) -> tuple[str, str] | None:
    """Why and remedy for a name that is an option elsewhere; None where it is none there either."""
    name = option_name(spelling)
    as_flag = spelling.startswith("-")
    for prefix, option in PREFIXES.items():
        if name.startswith(prefix) and option in option_table():
            return _argument_words(name.removeprefix(prefix), option, as_flag=as_flag)
    known = old_names().get(spelling.lstrip("-").replace("-", "_")) or old_names().get(name)
    if known is None or known.fate == "kept":
        return None
    if known.fate == "absent":
        return f"is not here: {known.why}", f"Leave {spelling} out"
    instead = known.instead(as_flag=as_flag)
    return f"is {instead} here" + (f": {known.why}" if known.why else ""), f"Write {instead}"


def _argument_words(argument: str, option: str, *, as_flag: bool) -> tuple[str, str]:
    """Slime's ``--sglang-mem-fraction-static 0.7`` is ``--sglang mem-fraction-static 0.7``."""
    dashed = argument.replace("_", "-")
    instead = f"--{option} {dashed} VALUE" if as_flag else f"{dashed} in the table [{option}]"
    return f"is an argument of {option}'s own server", f"Write {instead}"


def _read(table: Mapping[str, Any]) -> Iterator[OldName]:
    for name, note in table["kept"].items():
        yield OldName(name, "kept", name, why=note)
    for name, option in table["renamed"].items():
        yield OldName(name, "renamed", option)
    for name, told in table["folded"].items():
        yield OldName(name, "folded", **told)
    for group in table["absent"]:
        for name in group["names"]:
            yield OldName(name, "absent", why=group["why"])
