"""Every option against every command and variant: accepted, or refused by the rule that is meant for it."""

import pytest

from miles.config.registry import all_options, option_table
from miles.config.resolve import examine
from miles.config.sources import FlagValue
from tests.config.support import CHOSEN, VARIANTS, flag, flag_value, good_values, owned_names, toml, variable_text

pytestmark = pytest.mark.unit
OPTIONS = [option.name for option in all_options()]


def rule_for(name, variant):
    """Which rule refuses an option, told from the classes and what each selector chooses."""
    command, selectors = VARIANTS[variant]
    siblings = [other for other, (owner, _) in VARIANTS.items() if owner == command]
    if name in owned_names(variant):
        return "fits"
    if not any(name in owned_names(other) for other in siblings):
        return "other command"
    if name == "rollout_function_path" and "fully_async" in selectors:
        return "two selectors"
    return "selects" if name in ("fully_async", "colocate") else "other variant"


WORDS = {
    "other command": ("belongs to `miles ",),
    "two selectors": ("both choose the rollout function",),
    "other variant": ("counts only with --", "does not count with --"),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", ["flag", "file", "variable"])
def test_every_option_meets_its_rule(bench, variant, form):
    command, selectors = VARIANTS[variant]
    for name in OPTIONS:
        option = option_table()[name]
        value = good_values(option)[0]
        if name in ("fully_async", "colocate") and name in selectors:
            continue
        flags, env, files = dict(selectors), {}, []
        if form == "flag":
            flags[name] = flag_value(value)
        elif form == "file":
            files = [f"{name} = {toml(value)}"]
            flags |= {name: ...} if name in bench.needed else {}
        elif name != "fully_async":
            env = {option.variable: variable_text(value)}
        found = bench.examine(command, flags, env, files)
        rule = rule_for(name, variant)
        problems = [problem for problem in found.problems if problem.option == name]
        said = [problem for problem in problems if any(word in problem.why for words in WORDS.values() for word in words)]
        if rule in ("fits", "selects"):
            assert not said, (name, said)
        elif form == "variable" and rule != "two selectors":
            assert not problems, name
            assert not env or any(option.variable in warning for warning in found.warnings), name
        else:
            assert len(said) == 1, (name, rule)
            assert any(word in said[0].why for word in WORDS[rule])
            assert option.flag in str(said[0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_chosen_variants_are_the_classes_asked_for(bench, variant):
    command, selectors = VARIANTS[variant]
    config = bench.resolve(command, selectors).config
    if variant == "sft":
        assert (type(config.placement),) == CHOSEN[variant]
        return
    assert (type(config.rollout), type(config.placement)) == CHOSEN[variant]


@pytest.mark.parametrize(
    ("command", "flags", "line"),
    [
        ("train", {"fully_async": True, "lr": "3"}, "miles train-async --preset reverse --fully-async --lr 3"),
        ("train", {"max_weight_staleness": "2"}, "miles train-async --preset reverse --fully-async --max-weight-staleness 2"),
        (
            "train",
            {"lr": "3", "update_weights_interval": "2"},
            "miles train-async --preset reverse --lr 3 --update-weights-interval 2",
        ),
        (
            "train-async",
            {"max_weight_staleness": "2"},
            "miles train-async --preset reverse --fully-async --max-weight-staleness 2",
        ),
        (
            "train-async",
            {"colocate": True, "rollout_shuffle": False},
            "miles train --preset reverse --colocate --no-rollout-shuffle",
        ),
        ("train-async", {"offload_train": False}, "miles train --preset reverse --colocate --no-offload-train"),
        (
            "train",
            {"fully_async": True, "eval_prompt_data": (("a", "my file"), ("b", "c")), "rollout_stop": ("x", "y")},
            "miles train-async --preset reverse --fully-async --eval-prompt-data a 'my file' --eval-prompt-data b c "
            "--rollout-stop x --rollout-stop y",
        ),
        ("train", {"fully_async": True, "partial_rollout": True}, "miles train-async --preset reverse --fully-async"),
    ],
)
def test_the_remedy_is_a_whole_command_line(bench, command, flags, line):
    found = bench.examine(command, flags, bare=True, preset="reverse")
    assert f"Run: `{line}`, or leave" in found.problems[0].remedy


def test_a_switch_turned_off_chooses_the_other_variant(bench):
    resolution = bench.resolve("train-async", {"fully_async": False}, files=["fully_async = true"])
    assert resolution.derived.schedule == "one_step_off"
    row = next(row for row in resolution.rows if row.option == "fully_async")
    assert row.value == "false"
    assert row.origin.startswith("--no-fully-async · over ")


def test_two_selectors_name_both_origins(bench):
    found = bench.examine("train-async", {"fully_async": True}, files=['rollout_function_path = "a.b:c"'])
    (problem,) = found.problems
    assert problem.origin.endswith(".toml:1")
    assert "--rollout-function-path and --fully-async (--fully-async) both choose the rollout function" in problem.why


def test_variables_of_the_other_command_or_variant_only_warn(bench):
    env = {"MILES_MAX_WEIGHT_STALENESS": "3", "MILES_COLOCATE": "1"}
    one_step_off = bench.resolve("train-async", env=env)
    assert [warning.split(" ")[0] for warning in one_step_off.warnings] == ["$MILES_COLOCATE", "$MILES_MAX_WEIGHT_STALENESS"]
    assert bench.resolve("train-async", {"fully_async": True}, env).config.rollout.max_weight_staleness == 3


def test_a_variable_under_a_flag_of_the_wrong_variant_leaves_the_flag_refused(bench):
    found = bench.examine("train-async", {"max_weight_staleness": "2"}, {"MILES_MAX_WEIGHT_STALENESS": "3"})
    assert [(problem.option, problem.origin) for problem in found.problems] == [
        ("max_weight_staleness", "--max-weight-staleness")
    ]


def test_unreadable_switches_are_refused_once(bench):
    for command, name in (("train", "colocate"), ("train-async", "fully_async")):
        found = bench.examine(command, files=[f'{name} = "perhaps"'])
        assert [(problem.option, problem.why) for problem in found.problems] == [(name, "is neither true nor false")]


def test_flags_nobody_has_name_the_nearest(bench):
    sources = bench.sources()
    flags = {**sources.flags, "lerning_rate": FlagValue("1", "--lerning-rate"), "fully": FlagValue(True, "--fully")}
    found = examine("train", type(sources)(flags, cwd=bench.folder))
    assert [str(problem) for problem in found.problems] == [
        "--lerning-rate = 1 (command line): there is no such option. Did you mean --lr?",
        "--fully (command line): there is no such option. Did you mean --fully-async, an option of `miles train-async`?",
    ]
    assert flag("lr", "1").text == "--lr"
