"""Whatever is given where: the top layer wins and the row tells of all the others, in order."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miles.config import layers, presets
from miles.config.reading import read_value
from miles.config.registry import option_table
from miles.config.resolve import examine
from miles.config.sources import Sources
from miles.config.view import EXTERNAL
from tests.config.support import VARIANTS, flag, flag_value, good_values, owned_names, shown_text, toml, variable_text

pytestmark = pytest.mark.unit
LAYERS = ("preset", "project file", "standing file", "file 1", "file 2", "variable", "earlier flag", "flag")
FILES = ("project file", "standing file", "file 1", "file 2")


@pytest.mark.parametrize("variant", VARIANTS)
def test_of_any_option_nothing_that_was_given_is_lost(bench, variant, tmp_path, monkeypatch):
    command, selectors = VARIANTS[variant]
    names = sorted(name for name in owned_names(variant) if not option_table()[name].meta.selector)
    monkeypatch.setattr(presets, "PRESETS", tmp_path)

    @given(stacks(names))
    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def law(stack):
        sources = sources_of(bench, stack, selectors, tmp_path)
        chains = layers.gather(command, sources).chains
        for name, values in stack.items():
            assert [str(given.origin) for given in chains[name]] == expected_origins(name, values, stack, sources)
            top = values[next(layer for layer in reversed(LAYERS) if layer in values)]
            counts = chains[name][0]
            assert read_value(option_table()[name], counts.raw, counts.folder) == as_read(option_table()[name], top)

    law()


def as_read(option, value):
    """A value as reading makes it: paths are paths."""
    if option.shape.scalar is not Path:
        return value
    return tuple((name, Path(item)) for name, item in value) if option.shape.pairs else Path(value)


def plain_options(variant):
    """The options of a variant whose values are shown and do not make each other void."""
    for name in sorted(owned_names(variant)):
        meta = option_table()[name].meta
        if not (meta.selector or meta.alternative or meta.counts_when or meta.secret or name == EXTERNAL):
            yield name


@st.composite
def stacks(draw, options):
    """Option → layer → value."""
    names = draw(st.lists(st.sampled_from(options), unique=True, min_size=1, max_size=8))
    return {
        name: {
            layer: draw(st.sampled_from(good_values(option_table()[name])))
            for layer in draw(st.sets(st.sampled_from(LAYERS), min_size=1))
        }
        for name in names
    }


def file_text(stack, layer):
    lines = [f"{name} = {toml(values[layer])}" for name, values in stack.items() if layer in values]
    return "\n".join(["# first line", *lines, ""])


def sources_of(bench, stack, selectors, folder):
    """The stack, written down in five places."""
    (folder / "made").mkdir(exist_ok=True)
    (folder / "made" / "preset.toml").write_text(file_text(stack, "preset"))
    flags = {name: flag(name, value) for name, value in selectors.items()}
    flags |= {name: typed(name, values) for name, values in stack.items() if {"flag", "earlier flag"} & values.keys()}
    variables = {
        option_table()[name].variable: variable_text(values["variable"]) for name, values in stack.items() if "variable" in values
    }
    project, standing, first, second = (bench.file(file_text(stack, layer)) for layer in FILES)
    return Sources(
        flags=flags,
        config_files=(first, second),
        preset="made",
        environ=variables | {"MILES_CONFIG": str(standing)},
        cwd=bench.folder,
        project_file=project,
    )


def typed(name, values):
    """One flag, or the same one twice; a list is one value however often its flag stands there."""
    given = [flag(name, flag_value(values[layer])) for layer in ("earlier flag", "flag") if layer in values]
    return given[-1]._replace(earlier=tuple(given[:-1]))


def expected_origins(name, values, stack, sources):
    """Texts of the origins of an option, the one that counts first."""
    texts = []
    for layer in reversed(LAYERS):
        if layer not in values:
            continue
        if layer in ("flag", "earlier flag"):
            texts.append(flag(name, values[layer]).text)
        elif layer == "variable":
            texts.append("$" + option_table()[name].variable)
        elif layer == "preset":
            texts.append("preset made")
        else:
            file = sources.file_sources()[FILES.index(layer)].path
            inside = [other for other, others in stack.items() if layer in others]
            texts.append(f"{file}:{inside.index(name) + 2}")
    return texts


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_top_layer_wins_and_the_chain_is_whole(bench, variant, tmp_path, monkeypatch):
    command, selectors = VARIANTS[variant]
    monkeypatch.setattr(presets, "PRESETS", tmp_path)

    @given(stacks(list(plain_options(variant))))
    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def law(stack):
        sources = sources_of(bench, stack, selectors, tmp_path)
        assert not layers.gather(command, sources).problems
        rows = {row.option: row for row in examine(command, sources).rows}
        for name, values in stack.items():
            top = values[next(layer for layer in reversed(LAYERS) if layer in values)]
            assert rows[name].value == shown_text(top), name
            origins = [str(origin) for origin, _ in rows[name].chain]
            wanted = expected_origins(name, values, stack, sources)
            assert origins[: len(wanted)] == wanted
            assert origins[len(wanted) :] in ([], ["default"])

    law()


def test_a_row_spells_its_chain_out(bench):
    found = bench.examine("train", {"lr": "0.4"}, {"MILES_LR": "3"}, ["lr = 0.2", "lr = 0.3"])
    row = next(row for row in found.rows if row.option == "lr")
    first, second = bench.sources(files=["", ""]).config_files
    assert row.origin.startswith("--lr · over $MILES_LR (3) · over ")
    assert ":1 (0.3) · over " in row.origin
    assert row.origin.endswith(":1 (0.2)")
    assert first != second


def test_two_files_count_without_being_named(bench, tmp_path):
    for name, text in (("miles.toml", "lr = 1\nseed = 1\n"), ("a.toml", "lr = 2\nseed = 2\n"), ("b.toml", "lr = 3\n")):
        (tmp_path / name).write_text(text)
    environ = {"MILES_CONFIG": f"a.toml{os.pathsep}b.toml"}
    found = examine("train", Sources(environ=environ, cwd=tmp_path, project_file=Path("miles.toml")))
    rows = {row.option: row.origin for row in found.rows}
    assert rows["lr"] == "b.toml:1 · over a.toml:1 (2) · over miles.toml:1 (1)"
    assert rows["seed"] == "a.toml:2 · over miles.toml:2 (1)"
    assert not found.warnings


def test_a_standing_file_that_is_missing_is_told_with_the_variable(bench):
    found = bench.examine("train", env={"MILES_CONFIG": "gone.toml"})
    assert [str(problem) for problem in found.problems] == [
        "config = gone.toml ($MILES_CONFIG): there is no such file. Correct the path"
    ]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[train-async.fully-async]\nmax_weight_staleness = 2\n", "train-async"),
        ("[train]\nlr = 1\n", "train"),
        ("[train]\nlr = 1\n[train-async]\nlr = 2\n", None),
        ("lr = 1\n", None),
        ("", None),
    ],
)
def test_a_file_tells_by_its_tables_which_command_it_is_about(bench, text, named):
    assert layers.command_named(bench.sources(files=[text])) == named
    assert layers.command_named(bench.sources(files=["[train]\nlr = 3\n", text])) == (named or "train")


def test_paths_of_a_preset_are_relative_to_it_and_others_to_the_working_directory(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "PRESETS", tmp_path)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "preset.toml").write_text('description = "x"\nhf_checkpoint = "model"\nprompt_data = "p.jsonl"\n')
    flags = {"hf_checkpoint": ..., "prompt_data": ...}
    found = bench.examine("train", flags, files=['prompt_data = "prompts.jsonl"'], preset="made")
    rows = {row.option: row.value for row in found.rows}
    assert rows["hf_checkpoint"] == str(tmp_path / "made" / "model")
    assert rows["prompt_data"] == str(bench.folder / "prompts.jsonl")


def test_a_preset_yields_to_a_choice_that_makes_its_value_void(bench):
    flags = dict.fromkeys(bench.needed, ...) | {"num_epoch": "2", "custom_rm_path": "a.b:c", "off_policy_correction": "none"}
    resolution = bench.resolve("train", flags, preset="reverse")
    rows = {row.option: row for row in resolution.rows}
    assert resolution.config.reward.rm_type is None
    assert resolution.derived.num_rollout == 512
    assert rows["rm_type"].note == "rm_type = exact (preset reverse) yields to custom_rm_path = a.b:c (--custom-rm-path)"
    assert "num_rollout = 150 (preset reverse) yields" in rows["num_rollout"].note
    assert [str(origin) for origin, _ in rows["rm_type"].chain] == ["default"]


def test_a_preset_does_not_yield_to_itself(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "PRESETS", tmp_path)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "preset.toml").write_text("num_rollout = 3\nnum_epoch = 2\n")
    found = bench.examine("train", {"num_rollout": ...}, preset="made")
    assert [problem.option for problem in found.problems] == ["num_rollout"]


def test_a_preset_may_set_what_has_no_effect_in_one_schedule(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "PRESETS", tmp_path)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "preset.toml").write_text("tis_clip = 3\n")
    sync = {row.option: row for row in bench.resolve("train", preset="made").rows}["tis_clip"]
    assert (sync.value, sync.note) == ("2.0", "tis_clip = 3 (preset made) is set aside: it has no effect here")
    assert bench.resolve("train-async", preset="made").config.algorithm.tis_clip == 3


def test_a_file_does_not_yield(bench):
    found = bench.examine("train", {"num_rollout": ..., "num_epoch": "2"}, files=["num_rollout = 3"])
    assert [problem.option for problem in found.problems] == ["num_rollout"]


def test_none_takes_a_value_back(bench):
    flags = {"num_rollout": "none", "num_epoch": "2"}
    assert bench.resolve("train", flags, files=["num_rollout = 3"]).config.data.num_rollout is None
