"""Options that do not go together, by three rules that know no option by name.

(a) two selectors of one union: both would choose the rollout function;
(b) an option of a variant that was not chosen;
(c) an option of the other command.

The sentences are the same for flags, files and variables, except that a variable under (b) and (c) only warns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from miles.config.command_lines import command_line, needed_selector
from miles.config.layers import Chain, Layers
from miles.config.options.base import OptionSet
from miles.config.reading import UnreadableError, read_value, shown_given
from miles.config.registry import Option, option_table, selector_of
from miles.config.sources import OriginKind, Sources
from miles.errors import Problem


@dataclass(frozen=True, slots=True)
class Fitting:
    """What is left of the layers once what does not fit is taken out.

    chains: options of the chosen variants, and switches that were turned off.
    """

    chains: Mapping[str, Chain]
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]


def fit(layers: Layers, sources: Sources) -> Fitting:
    """Apply the three rules to every option given."""
    chains: dict[str, Chain] = {}
    problems: list[Problem] = []
    warnings: list[str] = []
    for name, chain in layers.chains.items():
        option = option_table()[name]
        if _fits(option, layers) or _is_turned_off(option, layers, chain):
            chains[name] = chain
            continue
        rivals = _rivals(option, layers)
        variables = [] if rivals else [given for given in chain if given.origin.kind is OriginKind.ENVIRONMENT]
        rest = tuple(given for given in chain if given not in variables)
        if variables:
            warnings.append(f"{variables[0].origin} is ignored: {option.flag} {_needs(option, layers)}")
        if rest:
            problems.append(_refusal(option, rest, rivals, layers, sources))
    return Fitting(chains, tuple(problems), tuple(warnings))


def _fits(option: Option, layers: Layers) -> bool:
    return layers.command in option.commands and option.name in layers.variants[option.section].model_fields


def _is_turned_off(option: Option, layers: Layers, chain: Chain) -> bool:
    """Whether an option of the command says that its own variant is not wanted: ``--no-fully-async``."""
    if layers.command not in option.commands or not option.meta.selector:
        return False
    try:
        return not read_value(option, chain[0].raw, chain[0].folder)
    except UnreadableError:
        return True


def _rivals(option: Option, layers: Layers) -> list[str]:
    """The switch that chose another variant than the one this selector would choose."""
    if not option.meta.selector or layers.command not in option.commands:
        return []
    chosen = selector_of(layers.variants[option.section])
    return [chosen] if chosen and option_table()[chosen].meta.chooses == option.meta.chooses else []


def _refusal(option: Option, chain: Chain, rivals: Sequence[str], layers: Layers, sources: Sources) -> Problem:
    origin = str(chain[0].origin)
    value = shown_given(option, chain[0].raw, chain[0].folder)
    if layers.command not in option.commands:
        return Problem(option.name, value, origin, *_other_command(option, sources))
    if rivals:
        return Problem(option.name, value, origin, *_two_selectors(option, option_table()[rivals[0]], layers, sources))
    return Problem(option.name, value, origin, *_other_variant(option, layers, sources))


def _other_command(option: Option, sources: Sources) -> tuple[str, str]:
    other = option.commands[0]
    needed = needed_selector(option, other)
    line = command_line(other, sources, plus=[needed] if needed else [])
    with_flag = f" with {needed}" if needed else ""
    return f"{option.flag} belongs to `miles {other}`{with_flag}", f"Run: `{line}`, or leave {option.flag} out"


def _two_selectors(option: Option, rival: Option, layers: Layers, sources: Sources) -> tuple[str, str]:
    origin = layers.chains[rival.name][0].origin
    without = command_line(layers.command, sources, without={rival.name})
    only = command_line(layers.command, sources, without={option.name})
    why = f"{option.flag} and {rival.flag} ({origin}) both choose {option.meta.chooses}"
    return why, f"Keep one of them: `{only}` or `{without}`"


def _other_variant(option: Option, layers: Layers, sources: Sources) -> tuple[str, str]:
    needed = needed_selector(option, layers.command)
    chosen = selector_of(layers.variants[option.section])
    if needed:
        line = command_line(layers.command, sources, plus=[needed])
        return f"{option.flag} {_needs(option, layers)}", f"Run: `{line}`, or leave {option.flag} out"
    switch = option_table()[chosen].flag if chosen else ""
    return f"{option.flag} {_needs(option, layers)}", f"Leave out {option.flag} or {switch}"


def _needs(option: Option, layers: Layers) -> str:
    needed = needed_selector(option, layers.command)
    if needed:
        return f"counts only with {needed}, which is not set"
    return f"does not count with {_switch_of(layers.variants[option.section])}"


def _switch_of(option_set: type[OptionSet]) -> str:
    selector = selector_of(option_set)
    return option_table()[selector].flag if selector else option_set.__name__
