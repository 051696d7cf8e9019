"""What a schedule does, in words, and other short texts that several screens share."""

import math

from miles.config.derived import Derived
from miles.config.resolution import Row

SCHEDULES = {
    "sync": "sync: the policy waits for rollout k, the engines wait for step k",
    "one_step_off": "one-step-off: rollout k+1 runs while step k trains",
    "fully_async": "fully async: a producer keeps the engines full, the policy drains a buffer",
    "sft": "supervised: optimiser steps on answers that are given",
}


def schedule_sentence(schedule: str, bound: int) -> str:
    """``fully async: …; staleness at most 4 weight versions``."""
    if schedule == "sft":
        return SCHEDULES[schedule]
    versions = "0" if bound == 0 else f"at most {bound} weight version{'' if bound == 1 else 's'}"
    return f"{SCHEDULES[schedule]}; staleness {versions}"


def heading(command: str, derived: Derived | None) -> str:
    """The first line of a configuration: the command, and what its schedule means."""
    return heading_of(command, derived.schedule, derived.staleness_bound) if derived else f"miles {command}"


def heading_of(command: str, schedule: str, bound: int) -> str:
    """The same, from the names alone."""
    return f"miles {command} · {schedule_sentence(schedule, bound)}"


def shown_value(row: Row) -> str:
    """A row's value; one that nobody has given, or an empty text, is made visible."""
    if row.value:
        return row.value
    return '""' if row.chain or row.derived else "(needed)"


def rough(seconds: float) -> str:
    """``8 s``, ``5 min``, ``3 h``, ``12 days``."""
    units = ((86400, "days"), (3600, "h"), (60, "min"), (1, "s"))
    size, unit = next(((size, unit) for size, unit in units if seconds >= 2 * size), units[-1])
    return f"{max(0, int(seconds // size))} {unit}"


def duration(seconds: float) -> str:
    """``8 s``, ``1:42``, ``2:03:04``."""
    if not math.isfinite(seconds):
        return "?"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def table_cell(text: str) -> str:
    """A text within a Markdown table."""
    return text.replace("|", "\\|")
