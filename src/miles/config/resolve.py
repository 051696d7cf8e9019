"""From sources to a configuration: merge the layers first, then look at everything once, and report every problem.

sources ──gather──► layers ──fit──► chains ──merge──► view ──checks──► problems, or config + derived + rows
"""

from collections.abc import Sequence
from dataclasses import replace

from miles.config.checks import ARGUMENT_CHECKS, CHECKS, Check, run_checks, warnings_of
from miles.config.commands import COMMANDS, AnyConfig, SftConfig
from miles.config.derived import derive
from miles.config.effects import effect_problems
from miles.config.facts import Facts, read_facts
from miles.config.file_checks import FILE_CHECKS, checks_with
from miles.config.layers import gather
from miles.config.merge import Merged, build_sections, merge, missing_problems
from miles.config.registry import options_of
from miles.config.resolution import Examination, Resolution
from miles.config.rows import make_rows
from miles.config.rules import fit
from miles.config.sft import SFT, SFT_CHECKS, derive_sft, sft_checks_with
from miles.config.sources import Sources
from miles.config.tracker_checks import TRACKER_CHECKS
from miles.errors import ConfigError, Problem


def resolve(command: str, sources: Sources, *, code_too: bool = False) -> Resolution:
    """The configuration of ``miles <command>``.

    code_too: import the user's code that it names, so that what is wrong with it is reported with the rest.

    Raises:
        ConfigError: with every problem found, in the order of the options.
    """
    found = examine(command, sources, code_too=code_too)
    if isinstance(found.config, SftConfig):
        raise TypeError("miles sft is resolved by resolve_sft")
    if found.problems or found.config is None or found.derived is None:
        raise ConfigError(list(found.problems))
    return Resolution(command, found.config, found.derived, found.rows, found.warnings)


def resolve_sft(sources: Sources) -> Resolution[SftConfig]:
    """The configuration of ``miles sft``.

    Raises:
        ConfigError: with every problem found, in the order of the options.
    """
    found = examine(SFT, sources)
    if not isinstance(found.config, SftConfig) or found.derived is None:
        raise ConfigError(list(found.problems))
    return Resolution(SFT, found.config, found.derived, found.rows, found.warnings)


def examine(command: str, sources: Sources, *, paths_too: bool = True, code_too: bool = False) -> Examination:
    """Everything that can be said about a configuration, right or wrong.

    paths_too: look at the files and folders that it names; without them there is neither configuration nor derived values.
    code_too: import the user's code that it names.
    """
    layers = gather(command, sources)
    fitting = fit(layers, sources)
    merged = merge(layers, fitting.chains)
    problems = [*layers.problems, *fitting.problems, *merged.problems]
    sections, refused = build_sections(merged.view)
    problems += refused
    named = {problem.option for problem in problems}
    facts = None
    if not layers.incomplete:
        problems += [problem for problem in missing_problems(merged.view, sources.preset) if problem.option not in named]
        problems, facts = _check(merged, problems, sources, paths_too=paths_too)
    if code_too:
        problems += _code_problems(merged, problems)

    config: AnyConfig | SftConfig | None = None
    derived = None
    if not problems and facts is not None:
        config = COMMANDS[command].model_validate(sections)
        derived = derive_sft(config, facts) if isinstance(config, SftConfig) else derive(config, facts)
    rows = make_rows(merged.view, fitting.chains, merged.notes, derived)
    warnings = [*layers.warnings, *fitting.warnings]
    if not problems:
        warnings += warnings_of(merged.view)
        if sources.gpu_memory_gib is not None:
            warnings.append(f"GPUs of {sources.gpu_memory_gib:g} GiB are taken for granted (--gpu-memory-gib), whatever is here")
    return Examination(command, config, derived, rows, tuple(warnings), _in_order(command, problems))


def _check(
    merged: Merged, problems: Sequence[Problem], sources: Sources, *, paths_too: bool
) -> tuple[list[Problem], Facts | None]:
    """All problems, those of the checks added, and the facts where files and machine could be asked."""
    found = list(problems)

    def run(checks: Sequence[Check]) -> None:
        found.extend(run_checks(merged.without({problem.option for problem in found}).view, checks))

    run(ARGUMENT_CHECKS)
    found += effect_problems(merged.without({problem.option for problem in found}).view)
    run((*CHECKS, *SFT_CHECKS) if merged.view.command == SFT else CHECKS)
    if not paths_too:
        return found, None
    run(FILE_CHECKS)
    if sources.gpu_memory_gib is None:
        run(TRACKER_CHECKS)
    view = merged.without({problem.option for problem in found}).view
    if "hf_checkpoint" not in view or "prompt_data" not in view:
        return found, None
    facts = read_facts(view["hf_checkpoint"], view["prompt_data"], sources.environ)
    if sources.gpu_memory_gib is not None:
        facts = replace(facts, has_cuda=True, has_sglang=True, has_router=True, has_varlen=True)
    run((*checks_with(facts), *sft_checks_with(facts)) if merged.view.command == SFT else checks_with(facts))
    return found, facts


def _code_problems(merged: Merged, problems: Sequence[Problem]) -> list[Problem]:
    from miles.config.user_code import look_at_user_code

    return look_at_user_code(merged.without({problem.option for problem in problems}).view)[1]


def _in_order(command: str, problems: Sequence[Problem]) -> tuple[Problem, ...]:
    order = {option.name: place for place, option in enumerate(options_of(command))}
    return tuple(sorted(problems, key=lambda problem: order.get(problem.option, -1)))
