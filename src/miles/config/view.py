"""A configuration as the checks see it: flat values, who gave them, and which variants were chosen.

The same checks run over what the resolver merged and over a configuration built in Python.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from miles.config.options.base import OptionSet
from miles.config.reading import shown
from miles.config.registry import option_table, selector_of
from miles.errors import Problem

GIVEN = "given"
EXTERNAL = "rollout_external_engine_addrs"
OF_STARTED_ENGINES = (
    "rollout_num_gpus", "rollout_num_gpus_per_engine", "sglang", "engine_max_running_requests", "engine_max_restarts",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class View:
    """Values by option name.

    values: every option of the chosen variants whose value could be read, defaults included.
    given: the options that somebody set.
    origins: where the values given came from; empty for a configuration built in Python.
    texts: the values given as they were written; likewise.
    items: option → the keys of its table in a file, each with its own origin.
    """

    command: str
    variants: Mapping[str, type[OptionSet]]
    values: Mapping[str, Any]
    given: frozenset[str]
    origins: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    items: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def problem(self, name: str, why: str, remedy: str, item: str = "") -> Problem:
        """A problem with an option, or with one item of it, its value and origin filled in."""
        value = self.values.get(name)
        text = "" if value is None or value == () else shown(option_table()[name], value)
        origin = self.items.get(name, {}).get(item) or self.origins.get(name, "")
        return Problem(name, self.texts.get(name, text), origin, why, remedy)

    def named(self, name: str) -> str:
        """An option with value and origin, to be used within a sentence: ``lr = 1e-05 (--lr)``."""
        origin = self.origins.get(name, "")
        text = self.texts.get(name) or shown(option_table()[name], self.values[name])
        return f"{name} = {text}" + (f" ({origin})" if origin else "")

    def chose(self, selector: str) -> bool:
        """Whether a switch such as ``fully_async`` chose its variant."""
        return any(selector_of(option_set) == selector for option_set in self.variants.values())


def view_of(command: str, config: OptionSet) -> View:
    """The view of a configuration built in Python."""
    sections: dict[str, OptionSet] = {section: getattr(config, section) for section in type(config).model_fields}
    return View(
        command,
        {section: type(options) for section, options in sections.items()},
        {name: getattr(options, name) for options in sections.values() for name in type(options).model_fields},
        frozenset(name for options in sections.values() for name in options.model_fields_set),
    )


def counts(view: View, name: str) -> bool:
    """Whether an option has an effect beside the others' values."""
    if name in OF_STARTED_ENGINES and EXTERNAL in view and view[EXTERNAL]:
        return False
    conditions = option_table()[name].meta.counts_when
    return not conditions or any(_holds(view, other, wanted) for other, wanted in conditions.items())


def _holds(view: View, other: str, wanted: Any) -> bool:
    if other not in view:
        return True
    value = view[other]
    return any(bool(value) if word == GIVEN else value == word for word in wanted)
