"""What is accepted beside the refusals, and how several problems are reported together."""

import pytest

from miles.config.resolve import resolve
from miles.errors import ConfigError
from tests.config.support import refuse

pytestmark = pytest.mark.unit
FULLY = {"fully_async": True}


@pytest.mark.parametrize(
    ("command", "flags", "env"),
    [
        ("train", {}, {}),
        ("train-async", {}, {}),
        ("train-async", FULLY, {"MILES_EXPERIMENTAL_ROLLOUT_REFACTOR": "1"}),
        ("train-async", FULLY | {"max_weight_staleness": "0"}, {}),
        ("train", {"global_batch_size": "64"}, {}),
        ("train", {"rollout_num_gpus": "2"}, {}),
        ("train", {"rollout_batch_size": "100000"}, {}),
        ("train-async", {"off_policy_correction": "none", "rollout_top_p": "0.9"}, {}),
        ("train-async", {"rollout_function_path": "a.b:C"}, {}),
    ],
)
def test_accepted(bench, command, flags, env):
    resolution = resolve(command, bench.sources(flags, env, bare=True, preset="reverse"))
    assert resolution.command == command
    assert (resolution.derived.schedule == "fully_async") == ("fully_async" in flags)


def test_the_old_variable_is_an_origin(bench):
    resolution = bench.resolve("train-async", FULLY, {"MILES_EXPERIMENTAL_ROLLOUT_REFACTOR": "1"})
    row = next(row for row in resolution.rows if row.option == "rollout_api")
    assert (row.value, row.origin) == ("class", "$MILES_EXPERIMENTAL_ROLLOUT_REFACTOR")


def test_the_new_variable_wins_over_the_old(bench):
    env = {"MILES_EXPERIMENTAL_ROLLOUT_REFACTOR": "0", "MILES_ROLLOUT_API": "class"}
    row = next(row for row in bench.resolve("train", env=env).rows if row.option == "rollout_api")
    assert row.origin == "$MILES_ROLLOUT_API · over $MILES_EXPERIMENTAL_ROLLOUT_REFACTOR (function)"


def test_everything_wrong_is_said_at_once_in_the_order_of_the_options(bench):
    flags = {
        "lr": "x",
        "n_samples_per_prompt": "0",
        "fully_async": True,
        "rollout_top_k": "0",
        "prompt_data": "gone",
        "nothing": "1",
    }
    problems = refuse(bench, "train", flags, files=["unheard_of = 1"])
    assert [problem.option for problem in problems] == [
        "unheard_of", "--nothing", "fully_async", "prompt_data", "n_samples_per_prompt", "rollout_top_k", "lr",
    ]  # fmt: skip


def test_what_nobody_gave_is_missing(bench):
    problems = refuse(bench, "train", preset=None)
    assert [(problem.option, problem.why) for problem in problems][:2] == [
        ("hf_checkpoint", "is missing"),
        ("prompt_data", "is missing"),
    ]
    assert "Pass --hf-checkpoint FOLDER" in problems[0].remedy
    assert [problem.option for problem in problems][2:] == ["num_rollout", "rm_type"]


def test_an_unknown_preset_is_the_only_thing_said(bench):
    (problem,) = refuse(bench, "train", preset="revers")
    assert str(problem) == "preset = revers (--preset): there is no such preset. Did you mean reverse?"


def test_a_missing_file_is_the_only_thing_said(bench):
    sources = bench.sources(bare=True)
    with pytest.raises(ConfigError) as caught:
        resolve("train", type(sources)(config_files=(bench.folder / "gone.toml",), cwd=bench.folder))
    (problem,) = caught.value.problems
    assert problem.why == "there is no such file"
