"""Files on their own: everything wrong with them, each at its line, and nothing that is merely left open."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miles.config.presets import preset_file, preset_names
from miles.config.validate import file_problems

pytestmark = pytest.mark.unit
BAD = ["lr = nan", 'seed = "x"', "foo = 1", "rollout_top_p = 2", "rollout_batch_size = 0", "fully_async = 3", "[x]", "save = 1"]


def found(bench, text, *, paths_too=True):
    file = bench.file(text)
    return [(located.line, located.problem.option) for located in file_problems(file, bench.folder, paths_too=paths_too)]


def test_every_problem_at_its_line(bench):
    @given(st.lists(st.sampled_from(BAD[:5]), unique=True), st.integers(0, 3))
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def law(lines, blank):
        text = "\n" * blank + "\n".join(lines) + "\n"
        assert found(bench, text) == [(blank + number, line.split(" ")[0]) for number, line in enumerate(lines, 1)]

    law()


@pytest.mark.parametrize(
    "text", ["", "lr = 1\n", "[train]\nlr = 1\n", "fully_async = true\n", "over_sampling_batch_size = 'none'\n"]
)
def test_a_partial_file_is_fine(bench, text):
    assert found(bench, text) == []


def test_a_file_is_judged_for_the_command_of_its_tables(bench):
    assert found(bench, "fully_async = true\n[train]\nlr = 1\n") == [(1, "fully_async")]
    assert found(bench, "[train-async]\nlr = 1\nmax_weight_staleness = 2\n") == [(3, "max_weight_staleness")]


def test_paths_are_looked_for_unless_told_not_to(bench):
    assert found(bench, 'lr = 1\nprompt_data = "gone.jsonl"\n') == [(2, "prompt_data")]
    assert found(bench, 'lr = 1\nprompt_data = "gone.jsonl"\n', paths_too=False) == []


def test_broken_toml_is_told_at_its_line(bench):
    assert found(bench, "lr = 1\nseed = [\n")[0][0] == 2
    (located,) = file_problems(bench.folder / "gone.toml", bench.folder, paths_too=True)
    assert (located.line, located.problem.why) == (1, "there is no such file")


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_fine(bench, name):
    problems = file_problems(preset_file(name), preset_file(name).parent, paths_too=False)
    assert {located.problem.option for located in problems} <= {"description", "needs"}


def test_a_key_written_with_dashes_is_found_at_its_line(bench):
    assert found(bench, "lr = 1\n[train]\nrollout-temperature = 0\n") == [(3, "rollout_temperature")]
