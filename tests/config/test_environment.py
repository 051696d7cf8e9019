"""Variables: every option has one; what fits nothing warns with the nearest name."""

import pytest

from miles.config.environment import read_environment
from miles.config.registry import all_options, options_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("command", ["train", "train-async"])
def test_every_option_of_a_command_is_read(tmp_path, command):
    environ = {option.variable: "x" for option in all_options()}
    environ.pop("MILES_FULLY_ASYNC")
    found = read_environment(command, environ, tmp_path)
    own = {option.name for option in options_of(command)} - {"fully_async"}
    assert {given.name for given in found.given} == own
    assert len(found.warnings) == len(environ) - len(own)
    assert not found.problems


def test_unknown_variables_warn_with_the_nearest_and_without_their_value(tmp_path):
    environ = {"MILES_LERNING_RATE": "secret", "MILES_": "", "MILES_ZZZZ": "", "MILES_lr": "1", "OTHER": "", "MILESTONE": ""}
    found = read_environment("train", environ, tmp_path)
    assert found.warnings == (
        "$MILES_ is ignored: there is no such option",
        "$MILES_LERNING_RATE is ignored: there is no such option; did you mean $MILES_LR?",
        "$MILES_ZZZZ is ignored: there is no such option",
        "$MILES_lr is ignored: there is no such option; did you mean $MILES_LR?",
    )


def test_a_variable_of_the_other_command_says_whose_it_is(tmp_path):
    found = read_environment("train", {"MILES_MAX_WEIGHT_STALENESS": "1"}, tmp_path)
    assert found.warnings == ("$MILES_MAX_WEIGHT_STALENESS is ignored: --max-weight-staleness belongs to `miles train-async`",)


def test_the_schedule_is_not_chosen_by_a_variable(bench):
    for command in ("train", "train-async"):
        for value in ("0", "1", "false"):
            (problem,) = bench.examine(command, env={"MILES_FULLY_ASYNC": value}).problems
            assert "pass --fully-async" in problem.remedy
            assert problem.value == value


def test_an_old_name_in_a_variable_is_told_the_new_one(bench):
    (warning,) = bench.resolve("train", env={"MILES_USE_TIS": "1"}).warnings
    assert warning.startswith("$MILES_USE_TIS is ignored: it is --off-policy-correction tis here")
