"""Options out of environment variables: ``MILES_LR`` is ``--lr``.

A variable may be exported for good, so one that does not fit the command only warns; one that is no option at all is
most likely a slip and warns too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from miles.config.old_names import old_name_words
from miles.config.registry import VARIABLE_PREFIX, find_option, nearest_option, option_name
from miles.config.sources import COMMAND_FLAGS, CONFIG_VARIABLE, Given, Origin, OriginKind
from miles.errors import Problem

FULLY_ASYNC = "MILES_FULLY_ASYNC"
ROLLOUT_REFACTOR = "MILES_EXPERIMENTAL_ROLLOUT_REFACTOR"
_APIS = {"1": "class", "0": "function"}


@dataclass(frozen=True, slots=True)
class Variables:
    """What the environment gives to a command."""

    given: tuple[Given, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]


def read_environment(command: str, environ: Mapping[str, str], cwd: Path) -> Variables:
    """The options among the ``MILES_…`` variables, by name; the older variables of the past are translated."""
    given: list[Given] = []
    problems: list[Problem] = []
    warnings: list[str] = []
    for variable in sorted(name for name in environ if name.startswith(VARIABLE_PREFIX) and name != CONFIG_VARIABLE):
        value = environ[variable]
        origin = Origin(OriginKind.ENVIRONMENT, f"${variable}")
        option = find_option(variable)
        if variable == FULLY_ASYNC:
            problems.append(_schedule_problem(command, value, origin))
        elif variable == ROLLOUT_REFACTOR:
            if value in _APIS:
                given.insert(0, Given("rollout_api", _APIS[value], origin, cwd))
            else:
                problems.append(_api_problem(value, origin))
        elif option is None or variable != option.variable:
            warnings.append(_unknown_warning(command, variable))
        elif command not in option.commands:
            warnings.append(f"${variable} is ignored: {option.flag} belongs to `miles {option.commands[0]}`")
        else:
            given.append(Given(option.name, value, origin, cwd))
    return Variables(tuple(given), tuple(problems), tuple(warnings))


def _schedule_problem(command: str, value: str, origin: Origin) -> Problem:
    where = "" if command == "train-async" else " to `miles train-async`"
    remedy = f"Unset {FULLY_ASYNC} and pass --fully-async{where}"
    return Problem("fully_async", value, origin.text, "the schedule is not chosen by a variable", remedy)


def _api_problem(value: str, origin: Origin) -> Problem:
    remedy = "Set it to 1 (class) or 0 (function), or unset it and pass --rollout-api"
    return Problem("rollout_api", value, origin.text, "is neither 1 nor 0", remedy)


def _unknown_warning(command: str, variable: str) -> str:
    if old := old_name_words(f"--{option_name(variable).replace('_', '-')}"):
        return f"${variable} is ignored: it {old[0]}"
    if (name := option_name(variable)) in COMMAND_FLAGS:
        return f"${variable} is ignored: --{name.replace('_', '-')} is a flag of the command line, and no option of a run"
    near = nearest_option(variable, command)
    meant = "" if near is None else near.flag if near.variable == FULLY_ASYNC else f"${near.variable}"
    hint = f"; did you mean {meant}?" if meant else ""
    return f"${variable} is ignored: there is no such option{hint}"
