"""A flag, a file key and a variable say the same thing: same value, or same refusal, apart from the origin."""

from pathlib import Path

import pytest

from miles.config.registry import all_options, option_table
from tests.config.support import OF_SFT, VARIANTS, flag_value, good_values, owned_names, toml, variable_text

pytestmark = pytest.mark.unit
NAMES = [option.name for option in all_options() if option.name != "fully_async"]
BAD = {
    int: [("0.5", '"0.5"'), ("many", '"many"'), ("", '""'), ("-7", "-7"), ("1e3", '"1e3"')],
    float: [("x", '"x"'), ("nan", "nan"), ("inf", "inf"), ("-2", "-2"), ("-2", '"-2"')],
    bool: [("perhaps", '"perhaps"'), ("2", "2")],
    str: [("", '""')],
    Path: [("", '""')],
}


def variant_of(name):
    return next(
        variant for variant in ("sync", "one_step_off", "fully_async", "colocated", "sft") if name in owned_names(variant)
    )


def examined(bench, name, **forms):
    command, selectors = VARIANTS[variant_of(name)]
    flags = {key: value for key, value in selectors.items() if key != name}
    if name in (bench.needed | OF_SFT) and "flags" not in forms:
        flags[name] = ...
    if name == "num_epoch":
        flags["num_rollout"] = ...
    if name == "custom_rm_path":
        flags["rm_type"] = ...
    found = bench.examine(command, flags | forms.pop("flags", {}), **forms)
    row = next(row for row in found.rows if row.option == name)
    origin = str(row.chain[0].origin)
    problems = [str(problem).replace(f"({origin})", "(origin)") for problem in found.problems]
    return row.value, [problem for problem in problems if name in problem]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_value_in_three_forms_is_the_same(bench, name):
    option = option_table()[name]
    for value in good_values(option):
        by_flag = examined(bench, name, flags={name: flag_value(value)})
        by_file = examined(bench, name, files=[f"{name} = {toml(value)}"])
        by_dashed_key = examined(bench, name, files=[f"{name.replace('_', '-')} = {toml(value)}"])
        by_variable = examined(bench, name, env={option.variable: variable_text(value)})
        assert by_flag == by_file == by_dashed_key == by_variable


@pytest.mark.parametrize("name", [name for name in NAMES if not option_table()[name].shape.repeated])
def test_the_same_mistake_in_three_forms_gets_the_same_sentence(bench, name):
    option = option_table()[name]
    mistakes = [("sideways", '"sideways"')] if option.choices else BAD.get(option.shape.scalar, [])
    for text, literal in mistakes:
        by_flag = examined(bench, name, flags={name: text})
        by_file = examined(bench, name, files=[f"{name} = {literal}"])
        by_variable = examined(bench, name, env={option.variable: text})
        assert by_flag[1] == by_file[1] == by_variable[1]
        assert by_flag[1] or (text == "-7" and not option.bounds), (name, text)
        assert not any("pydantic" in problem or "Input should" in problem for problem in by_flag[1])


@pytest.mark.parametrize("name", ["eval_prompt_data", "sglang"])
def test_pairs_have_a_short_form(bench, name):
    table = examined(bench, name, files=[f'{name} = {{ a = "/x", b = "/y" }}'])
    assert table[0] == "a=/x, b=/y"
    assert table == examined(bench, name, env={option_table()[name].variable: "a=/x, b=/y"})
    assert table == examined(bench, name, env={option_table()[name].variable: '{"a": "/x", "b": "/y"}'})
    assert table == examined(bench, name, flags={name: (("a", "/x"), ("b", "/y"))})


@pytest.mark.parametrize(
    ("name", "literal", "why"),
    [
        ("eval_prompt_data", "3", "does not consist of pairs NAME PATH"),
        ("eval_prompt_data", '["a"]', "does not consist of pairs NAME PATH"),
        ("rollout_stop", "3", "is no list"),
        ("rollout_stop", "[3]", "is no text"),
        ("rollout_stop_token_ids", '["x"]', "is not a whole number"),
        ("input_key", "3", "is no text"),
        ("lr", "true", "is not a number"),
        ("save_interval", "true", "is not a whole number"),
        ("save_interval", "2.0", "is not a whole number"),
        ("lr", "[1]", "is not a number"),
        ("save", '""', "is empty"),
        ("save", '"~nobody-of-this-name/x"', "names a home folder that there is not"),
        ("rollout_shuffle", "0.0", "is neither true nor false"),
        ("run_dir", "1979-05-27", "is no text"),
    ],
)
def test_files_hold_the_right_types(bench, name, literal, why):
    found = bench.examine("train", files=[f"{name} = {literal}"])
    assert [(problem.option, problem.why) for problem in found.problems] == [(name, why)]


def test_lists_in_variables_are_separated_by_commas(bench):
    config = bench.resolve("train", env={"MILES_ROLLOUT_STOP": "a, b", "MILES_ROLLOUT_STOP_TOKEN_IDS": "1,2"}).config
    assert config.sampling.rollout_stop == ("a", "b")
    assert config.sampling.rollout_stop_token_ids == (1, 2)


def test_a_list_with_bad_json_is_refused(bench):
    found = bench.examine("train", env={"MILES_ROLLOUT_STOP": "[a"})
    assert "is no JSON" in found.problems[0].why


def test_a_home_folder_is_found(bench, monkeypatch):
    monkeypatch.setenv("HOME", str(bench.folder))
    assert bench.resolve("train", files=['save = "~/x"']).config.model.save == bench.folder / "x"
