"""Options that would have no effect: refused from what their declaration says."""

from collections.abc import Iterator, Sequence
from typing import Any

from miles.config.reading import written
from miles.config.registry import option_table
from miles.config.view import EXTERNAL, GIVEN, OF_STARTED_ENGINES, View, counts
from miles.errors import Problem


def effect_problems(view: View) -> Iterator[Problem]:
    """One problem for every option that, though given, has no effect."""
    for name in (name for option_set in view.variants.values() for name in option_set.model_fields if name in view.given):
        if name in view and view[name] is not None and not counts(view, name):
            yield view.problem(name, *_no_effect(name, view))


def _no_effect(name: str, view: View) -> tuple[str, str]:
    if name in OF_STARTED_ENGINES and view.values.get(EXTERNAL):
        why = f"has no effect beside {view.named(EXTERNAL)}: those servers were started by you"
        return why, f"Leave {option_table()[name].flag} out, or the addresses"
    conditions = option_table()[name].meta.counts_when
    state = " and ".join(f"{view.named(other)}" if view[other] else f"{other} is not set" for other in conditions)
    first, *others = (_way(other, wanted) for other, wanted in conditions.items())
    ways = ", or ".join([first, *(way[0].lower() + way[1:] for way in others)])
    return f"has no effect while {state}", f"{ways}, or leave {option_table()[name].flag} out"


def _way(other: str, wanted: Sequence[Any]) -> str:
    option = option_table()[other]
    if GIVEN in wanted or option.shape.scalar is bool:
        return f"Pass {option.flag}"
    return f"Set {option.flag} to {' or '.join(written(word) for word in wanted)}"
