"""An option in words: its default, its bounds and its choices, for ``--help`` and for the reference page."""

from pathlib import Path
from typing import Any

from miles.config.reading import short_exponent
from miles.config.registry import REQUIRED, Option

SYMBOLS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
LOWER = {"gt": "<", "ge": "≤"}


def spell(value: Any) -> str:
    """A default as the user would write it; empty where there is none."""
    if value is REQUIRED or value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return " ".join(spell(item) for item in value)
    if isinstance(value, float):
        return short_exponent(repr(value).removesuffix(".0"))
    return str(value) if not isinstance(value, Path) else value.as_posix()


def spell_defaults(option: Option, mark: str = "") -> str:
    """The default, or one for each command where they differ; ``mark`` goes around each value."""
    if option.required:
        return "required"
    if option.meta.selector:
        return f"{mark}{spell(option.default)}{mark}" if spell(option.default) else ""
    by_text: dict[str, list[str]] = {}
    for owner in option.owners:
        commands = by_text.setdefault(spell(owner.option_set.model_fields[option.name].default), [])
        if owner.command not in commands:
            commands.append(owner.command)
    marked = {f"{mark}{text}{mark}" if text else "": commands for text, commands in by_text.items()}
    if len(marked) == 1:
        return next(iter(marked))
    return ", ".join(f"{text or 'none'} ({' and '.join(commands)})" for text, commands in marked.items())


def spell_bounds(option: Option) -> str:
    """``> 0``, ``0 ≤ x < 1``; empty where any number will do."""
    lower = [(kind, limit) for kind, limit in option.bounds if kind in LOWER]
    upper = [(kind, limit) for kind, limit in option.bounds if kind not in LOWER]
    if lower and upper:
        return f"{spell(lower[0][1])} {LOWER[lower[0][0]]} x {SYMBOLS[upper[0][0]]} {spell(upper[0][1])}"
    return "; ".join(f"{SYMBOLS[kind]} {spell(limit)}" for kind, limit in option.bounds)


def conditions(option: Option) -> str:
    """Under which choice the option has an effect; empty where it always has."""
    texts = []
    for name, values in option.meta.counts_when.items():
        flag = "--" + name.replace("_", "-")
        if list(values) in (["given"], [True]):
            texts.append(f"with {flag}")
        else:
            texts.append(f"with {flag} {' or '.join(str(value) for value in values)}")
    return " or ".join(texts)


def facts(option: Option) -> list[str]:
    """What ``--help`` says in brackets after the sentence."""
    said = ["required"] if option.required else []
    if default := spell(option.default):
        said.append(f"default: {default}")
    if option.default is True and option.negative_flag:
        said.append(f"turn off: {option.negative_flag}")
    said += [text for text in (spell_bounds(option), conditions(option)) if text]
    if option.shape.repeated:
        said.append("may be repeated")
    return said


def is_plain_switch(option: Option) -> bool:
    """Whether the negative flag is offered: not for a switch whose absence already says no (``--fully-async``)."""
    return bool(option.negative_flag) and not option.meta.selector
