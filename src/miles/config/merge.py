"""One value per option out of the layers, read once; a preset's value gives way to a choice that makes it void.

A preset is a recipe for others to change, so where a user's choice leaves a preset's value without effect, or says the
same thing in another way, the preset's value is set aside and its row says so. A user's own value is never set aside.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from miles.config.layers import Chain, Layers
from miles.config.options.base import OptionSet
from miles.config.presets import preset_needs
from miles.config.reading import UnreadableError, read_value, shown, shown_given
from miles.config.registry import REQUIRED, option_table
from miles.config.sources import OriginKind
from miles.config.view import View, counts
from miles.config.wording import refusal_words
from miles.errors import Problem


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged values.

    notes: option → why a preset's value for it was set aside.
    problems: values that have the wrong form, or are out of bounds.
    """

    view: View
    notes: Mapping[str, str]
    problems: tuple[Problem, ...]

    def without(self, bad: set[str]) -> "Merged":
        """The same, options with a problem taken out of the view, so that no check reads them."""
        values = {name: value for name, value in self.view.values.items() if name not in bad}
        return replace(self, view=replace(self.view, values=values))


def merge(layers: Layers, chains: Mapping[str, Chain]) -> Merged:
    """Read the value that counts of every option of the chosen variants."""
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for option_set in layers.variants.values():
        for name, info in option_set.model_fields.items():
            values[name] = info.default
            if name not in chains:
                continue
            top = chains[name][0]
            try:
                values[name] = read_value(option_table()[name], top.raw, top.folder)
            except UnreadableError as error:
                problems.append(Problem(name, shown(option_table()[name], top.raw), str(top.origin), error.why, error.remedy))
                del values[name]
    values = {name: value for name, value in values.items() if value is not REQUIRED}
    origins = {name: str(chain[0].origin) for name, chain in chains.items()}
    texts = {name: shown_given(option_table()[name], chain[0].raw, chain[0].folder) for name, chain in chains.items()}
    items = {name: chain[0].items for name, chain in chains.items()}
    view = View(layers.command, layers.variants, values, frozenset(chains) & frozenset(values), origins, texts, items)
    return _set_aside(Merged(view, {}, tuple(problems)), chains)


def build_sections(view: View) -> tuple[dict[str, OptionSet], list[Problem]]:
    """The option sets, validated; a section with a refused value is missing from the result."""
    sections: dict[str, OptionSet] = {}
    problems: list[Problem] = []
    for section, option_set in view.variants.items():
        given = {name: view[name] for name in option_set.model_fields if name in view and name in view.given}
        try:
            sections[section] = option_set.model_validate(given)
        except ValidationError as error:
            for entry in error.errors():
                name = str(entry["loc"][0])
                if entry["type"] != "missing":
                    problems.append(_refused_value(view, name, option_set, entry))
    return sections, problems


def missing_problems(view: View, preset: str | None = None) -> list[Problem]:
    """Options that a run cannot start without and nobody gave; a preset says how to come by what it does not bring."""
    needs = preset_needs(preset)
    return [
        Problem(name, "", "", "is missing", _how_to_get(name, preset, needs.get(name)))
        for option_set in view.variants.values()
        for name, info in option_set.model_fields.items()
        if (info.is_required() and name not in view) or lacks(view, name)
    ]


def lacks(view: View, name: str) -> bool:
    """Whether an option is needed because it is not given, and neither is what can stand in for it."""
    other = option_table()[name].meta.needed_unless
    return bool(other) and name in view and other in view and view[name] is None and view[other] is None


def _how_to_get(name: str, preset: str | None, need: str | None) -> str:
    option = option_table()[name]
    usage = f"{option.flag} {option.metavar}"
    if need:
        return f"Preset {preset} needs {need}; pass {usage}"
    return f"Pass {usage}, set {name} in a --config file, or take a --preset"


def _refused_value(view: View, name: str, option_set: type[OptionSet], entry: Mapping[str, Any]) -> Problem:
    why, remedy = refusal_words(option_table()[name], option_set, view[name], entry)
    return view.problem(name, why, remedy)


def _set_aside(merged: Merged, chains: Mapping[str, Chain]) -> Merged:
    from_preset = {name for name in merged.view.given if chains[name][0].origin.kind is OriginKind.PRESET}
    for name in sorted(from_preset):
        meta = option_table()[name].meta
        other = meta.alternative
        if other in merged.view.given and other not in from_preset and merged.view[other] is not None:
            merged = _default(merged, name, f"{merged.view.named(name)} yields to {merged.view.named(other)}")
    for name in sorted(from_preset):
        if name in merged.view.given and not counts(merged.view, name):
            merged = _default(merged, name, f"{merged.view.named(name)} is set aside: it has no effect here")
    return merged


def _default(merged: Merged, name: str, note: str) -> Merged:
    view = merged.view
    option_set = view.variants[option_table()[name].section]
    info = option_set.model_fields[name]
    values = {**view.values, name: info.default}
    origins = {known: origin for known, origin in view.origins.items() if known != name}
    texts = {known: text for known, text in view.texts.items() if known != name}
    return replace(
        merged,
        view=replace(view, values=values, given=view.given - {name}, origins=origins, texts=texts),
        notes={**merged.notes, name: note},
    )
