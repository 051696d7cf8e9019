"""Two configurations side by side: nothing differs from itself, and what differs is told from both sides."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miles.config.compare import differences, read_sides
from miles.config.records import RECORD_FILE, record_text
from miles.errors import ConfigError

pytestmark = pytest.mark.unit
VALUES = st.fixed_dictionaries(
    {}, optional={"lr": st.floats(1e-6, 1), "seed": st.integers(0, 99), "eps_clip": st.floats(0, 0.9), "input_key": st.just("q")}
)


def text_of(values):
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


def test_exactly_what_was_set_differently_differs(bench):
    @given(VALUES, VALUES)
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def law(one, other):
        sides = read_sides(str(bench.file(text_of(one))), str(bench.file(text_of(other))), bench.folder, None)
        found = {pair.option for pair in differences(*sides)}
        defaults = {"lr": 1e-6, "seed": 1234, "eps_clip": 0.2, "input_key": "prompt"}
        wanted = {name for name, value in defaults.items() if one.get(name, value) != other.get(name, value)}
        assert found - {"eps_clip_high"} == wanted
        assert differences(sides[0], sides[0]) == []
        mirrored = {(pair.option, pair.second, pair.first) for pair in differences(sides[1], sides[0])}
        assert mirrored == set(differences(*sides))

    law()


def test_both_origins_are_told(bench):
    first, second = bench.file("\nlr = 1\n"), bench.file("lr = 2\n")
    (pair,) = differences(*read_sides(str(first), str(second), bench.folder, "train"))
    assert (pair.first.origin, pair.second.origin) == (f"{first}:2", f"{second}:1")


def test_a_run_folder_and_the_configuration_it_was_made_from_are_the_same(bench, tmp_path):
    resolution = bench.resolve("train", {"lr": "0.5"})
    (tmp_path / RECORD_FILE).write_text(record_text(resolution))
    file = bench.file(text_of(bench.needed | {"lr": 0.5, "num_rollout": 10}))
    assert differences(*read_sides(str(tmp_path), str(file), bench.folder, None)) == []


def test_an_option_that_is_younger_than_the_record_differs_only_from_another_value_than_the_default(bench, tmp_path):
    data = json.loads(record_text(bench.resolve("train-async", {"fully_async": True})))
    for name in ("clip_grad", "max_weight_staleness"):
        del data["values"][name]
    (tmp_path / RECORD_FILE).write_text(json.dumps(data))
    base = text_of(bench.needed | {"num_rollout": 10}) + "[train-async]\nfully_async = true\n"
    for text, wanted in (("", ["max_weight_staleness"]), ("clip_grad = 2.0\n", ["max_weight_staleness", "clip_grad"])):
        sides = read_sides(str(tmp_path), str(bench.file(text + base)), bench.folder, None)
        assert [pair.option for pair in differences(*sides)] == wanted
        assert [pair.option for pair in differences(*sides[::-1])] == wanted


def test_a_side_that_does_not_say_takes_the_command_of_the_other(bench):
    plain, asynchronous = bench.file("lr = 1\n"), bench.file("[train-async]\nlr = 2\n")
    sides = read_sides(str(plain), str(asynchronous), bench.folder, None)
    assert [side.command for side in sides] == ["train-async", "train-async"]
    assert [pair.option for pair in differences(*sides)] == ["lr"]


def test_what_the_other_schedule_has_not_is_told(bench):
    sides = read_sides(str(bench.file("[train-async]\nfully_async = true\n")), str(bench.file("lr = 1e-6\n")), bench.folder, None)
    found = {pair.option: pair for pair in differences(*sides)}
    assert found["max_weight_staleness"].second is None
    assert found["rollout_function_path"].first is None


@pytest.mark.parametrize("text", ["lr = nan\n", "foo = 1\n", "lr = [\n"])
def test_a_side_that_could_not_run_is_refused(bench, text):
    with pytest.raises(ConfigError):
        read_sides(str(bench.file(text)), "reverse", bench.folder, None)


def test_nothing_of_that_name(bench):
    with pytest.raises(ConfigError, match="there is no such file, folder or preset"):
        read_sides("revers", "reverse", bench.folder, None)


def test_neither_environment_nor_project_file_counts(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("MILES_LR", "0.7")
    (tmp_path / "miles.toml").write_text("lr = 0.3\n")
    sides = read_sides("reverse", "reverse", tmp_path, "train")
    assert sides[0].rows["lr"].origin == "preset reverse"
