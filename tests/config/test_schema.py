"""The JSON Schema against the resolver: what one takes as a value, the other takes."""

import tomllib

import jsonschema
import pytest

from miles.config.presets import preset_file, preset_names
from miles.config.registry import all_options, option_table
from miles.config.schema import json_schema, option_schema
from miles.config.starter import starter_toml
from miles.config.toml_out import config_toml
from miles.errors import ConfigError
from tests.config.support import VARIANTS, good_values, toml

pytestmark = pytest.mark.unit
NAMES = [option.name for option in all_options()]


def accepts(schema, content):
    return jsonschema.Draft202012Validator(schema).is_valid(content)


@pytest.mark.parametrize("command", [None, "train", "train-async"])
def test_it_is_a_schema(command):
    jsonschema.Draft202012Validator.check_schema(json_schema(command))


@pytest.mark.parametrize("name", NAMES)
def test_good_values_are_taken_and_others_are_not(bench, name):
    option = option_table()[name]
    schema = option_schema(option)
    for value in good_values(option):
        assert accepts(schema, tomllib.loads(f"x = {toml(value)}")["x"]), value
    assert not accepts(schema, {"a": {"b": 1}})
    for bound, limit in option.bounds:
        over = {"gt": limit, "ge": limit - 1, "lt": limit, "le": limit + 1}[bound]
        assert not accepts(schema, over)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_config_of_every_run_is_taken(bench, variant):
    command, selectors = VARIANTS[variant]
    content = tomllib.loads(config_toml(bench.resolve(command, selectors | {"eval_prompt_data": (("a", "heldout.jsonl"),)})))
    assert accepts(json_schema(), content)
    assert accepts(json_schema(command), content)


def test_keys_are_known_only_where_they_count():
    schema = json_schema()
    assert accepts(schema, {"train-async": {"fully-async": {"max_weight_staleness": 1}}})
    assert not accepts(schema, {"train": {"max_weight_staleness": 1}})
    assert not accepts(schema, {"train-async": {"fully-async": {"rollout_function_path": "a.b"}}})
    assert not accepts(schema, {"lerning_rate": 1})
    assert not accepts(json_schema("train"), {"max_weight_staleness": 1})


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_taken(name):
    content = tomllib.loads(preset_file(name).read_text())
    about = {"description", "needs"}
    content = {key: value for key, value in content.items() if key not in about}
    assert accepts(json_schema(), content)


@pytest.mark.parametrize("command", ["train", "train-async"])
@pytest.mark.parametrize("preset", [None, *preset_names()])
def test_a_starter_is_taken_and_so_is_every_line_that_it_comments_out(bench, command, preset):
    text = starter_toml(command, preset)
    assert accepts(json_schema(command), tomllib.loads(text))
    assert text.startswith("#:schema ")
    lines = [line.removeprefix("# ") for line in text.splitlines() if " = " in line and line.split(" ")[1] in NAMES]
    assert len(lines) > 30
    for line in lines:
        name = line.split(" ")[0]
        value = tomllib.loads(line)[name]
        assert value == "none" or "required" in line or accepts(option_schema(option_table()[name]), value), line


def test_a_starter_of_no_preset():
    with pytest.raises(ConfigError, match="there is no such preset"):
        starter_toml("train", "revers")
