"""Options that would have no effect, or whose work is not done yet: refused from what their declaration says."""

from collections.abc import Iterator, Sequence
from typing import Any

from miles.config.options.base import OptionMeta, metas_of
from miles.config.reading import written
from miles.config.registry import option_table
from miles.config.view import EXTERNAL, GIVEN, OF_STARTED_ENGINES, View, counts
from miles.errors import Problem


def effect_problems(view: View) -> Iterator[Problem]:
    """One problem for every option that is not available yet or, though given, has no effect."""
    for option_set in view.variants.values():
        for name, info in option_set.model_fields.items():
            if name not in view:
                continue
            meta = metas_of(option_set)[name]
            if _is_not_yet(meta, info.default, view[name]):
                yield view.problem(name, f"is not available yet: {meta.not_yet}", _without(name))
            elif name in view.given and view[name] is not None and not counts(view, name):
                yield view.problem(name, *_no_effect(name, view))


def _is_not_yet(meta: OptionMeta, default: Any, value: Any) -> bool:
    if not meta.not_yet:
        return False
    return value in meta.not_yet_values if meta.not_yet_values else value != default


def _without(name: str) -> str:
    option = option_table()[name]
    available = [word for word in option.choices if word not in option.meta.not_yet_values]
    if available and option.meta.not_yet_values:
        return f"Set {option.flag} to {' or '.join(map(str, available))}"
    return f"Leave {option.flag} out"


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
