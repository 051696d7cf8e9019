"""Configuration files: flat names, tables that count only where they apply, and mistakes shown on their line."""

import pytest

from miles.config import presets
from miles.config.presets import preset_description, preset_names, preset_needs
from miles.config.resolve import examine

pytestmark = pytest.mark.unit
TABLES = """
lr = 1
[train]
lr = 2
rollout_seed = 20
[train-async]
lr = 3
update-weights-interval = 2
[train-async.fully-async]
lr = 4
max_weight_staleness = 7
"""


@pytest.mark.parametrize(
    ("command", "flags", "lr"), [("train", {}, 2.0), ("train-async", {}, 3.0), ("train-async", {"fully_async": True}, 4.0)]
)
def test_tables_count_where_they_apply(bench, command, flags, lr):
    config = bench.resolve(command, flags, files=[TABLES]).config
    assert config.optimizer.lr == lr
    assert config.sampling.rollout_seed == (20 if command == "train" else 42)
    assert getattr(config.rollout, "max_weight_staleness", 7) == 7
    assert getattr(config.rollout, "update_weights_interval", 2) == 2


def test_tables_are_layers_of_their_own(bench):
    rows = {row.option: row for row in bench.resolve("train-async", {"fully_async": True}, files=[TABLES]).rows}
    origins = [(str(origin).split(".toml")[1], value) for origin, value in rows["lr"].chain[:3]]
    assert origins == [(":10 [train-async.fully-async]", "4"), (":7 [train-async]", "3"), (":2", "1")]


def test_a_later_file_wins_over_a_table_of_an_earlier_one(bench):
    assert bench.resolve("train", files=[TABLES, "lr = 9"]).config.optimizer.lr == 9


def test_a_file_can_choose_the_schedule_in_its_table(bench):
    text = "[train-async]\nfully_async = true\n[train-async.fully-async]\nmax-weight-staleness = 2\n"
    assert bench.resolve("train-async", files=[text]).derived.staleness_bound == 2
    assert bench.resolve("train", files=[text]).derived.staleness_bound == 0


@pytest.mark.parametrize(
    ("text", "option", "words"),
    [
        ("a = 1\n\nlerning_rate = 2", "lerning_rate", ":3) there is no such option. Did you mean lr?"),
        ("zzzzzz = 2", "zzzzzz", "there is no such option. `miles train --help` lists the options"),
        ("[lr]\nstart = 1", "lr", "is a table, and one value is due. Write lr = NUMBER at the top of the file"),
        ("[train-async.update_weights_interval]\nx = 1", "update_weights_interval", "is a table, and one value is due. Write"),
        ("[optimizer]\nlr = 1", "optimizer", "there is no such table. Option names are flat: write the keys of [optimizer]"),
        ("[fully-async]\nlr = 1", "fully-async", "Did you mean [train-async.fully-async]?"),
        ("[train-asynch]\nlr = 1", "train-asynch", "Did you mean [train-async]?"),
        ("[train]\nmax_weight_staleness = 1", "max_weight_staleness", "Move it to [train-async.fully-async]"),
        ("[train]\nupdate_weights_interval = 1", "update_weights_interval", "Move it to [train-async]"),
        ("[train-async]\ncolocate = true", "colocate", "Move it to [train]"),
        ("[train-async]\noffload_train = true", "offload_train", "Move it to [train.colocate]"),
        ("[train.colocate]\nrollout_num_gpus = 1", "rollout_num_gpus", "it does not count with --colocate"),
        ("[train-async.fully-async]\nrollout_function_path = 'a'", "rollout_function_path", "does not count with --fully-async"),
        ("[train-async.fully-async]\npartial_rollout = true", "partial_rollout", "does not count with --fully-async"),
        ("[train]\nmax_staleness = true", "max_staleness", "Did you mean"),
        ("l-r = 1", "l-r", "there is no such option. Did you mean lr?"),
        ("save-interval = 1\nsave_interval = 2", "save_interval", "is given twice in one table"),
        ("description = 'x'", "description", "there is no such option"),
        ("preset = 'x'", "preset", "is a flag of the command line, and no option of a run. Pass --preset there"),
    ],
)
def test_misplaced_and_unknown_keys(bench, text, option, words):
    for command in ("train", "train-async"):
        problems = [problem for problem in bench.examine(command, files=[text]).problems if problem.option == option]
        assert len(problems) == 1
        said = str(problems[0])
        assert words.replace(":3) ", "") in said
        if words.startswith(":3)"):
            assert ":3)" in said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("lr = [", ":1): is not TOML: invalid value. Correct line 1:\n    lr = [\n          ^"),
        (
            "lr = 1\nseed ~ 2\n",
            ":2): is not TOML: expected '=' after a key in a key/value pair. Correct line 2:\n    seed ~ 2\n         ^",
        ),
        ("lr = 1\nlr = 2\n", ":2): is not TOML: cannot overwrite a value."),
        ("save = '''x", "is not TOML: "),
    ],
)
def test_syntax_errors_show_the_place(bench, text, shown):
    (problem,) = bench.examine("train", files=[text]).problems
    assert shown in str(problem)


def test_a_file_that_is_no_text(bench):
    path = bench.file("")
    path.write_bytes(b"\xff\xfe")
    sources = bench.sources()
    (problem,) = examine("train", type(sources)(sources.flags, (path,), cwd=bench.folder)).problems
    assert "cannot be read" in problem.why


def test_presets_are_listed_with_what_they_do(tmp_path, monkeypatch):
    assert "reverse" in preset_names()
    assert "reverse strings" in preset_description("reverse")
    monkeypatch.setattr(presets, "PRESETS", tmp_path)
    (tmp_path / "quiet").mkdir()
    (tmp_path / "quiet" / "preset.toml").write_text("lr = 1")
    (tmp_path / "not a preset").mkdir()
    assert preset_names() == ("quiet",)
    assert preset_description("quiet") == ""


def test_a_preset_says_how_to_come_by_what_it_needs(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "PRESETS", tmp_path)
    (tmp_path / "mine").mkdir()
    needs = '[needs]\nhf_checkpoint = "the model M (`get M`)"\n'
    (tmp_path / "mine" / "preset.toml").write_text(f'num_rollout = 1\nrm_type = "exact"\n{needs}')
    model, prompts = bench.examine("train", {"device": "cpu"}, bare=True, preset="mine").problems
    assert (model.option, model.remedy) == (
        "hf_checkpoint",
        "Preset mine needs the model M (`get M`); pass --hf-checkpoint FOLDER",
    )
    assert prompts.remedy.startswith("Pass --prompt-data FILE")
    assert preset_needs("no such preset") == {}
    in_a_file = [problem.option for problem in bench.examine("train", files=[needs]).problems]
    assert in_a_file == ["needs"]


WITH_ROLLOUTS = [name for name in preset_names() if not preset_needs(name) and name != "reverse-sft"]


@pytest.mark.parametrize("name", WITH_ROLLOUTS)
@pytest.mark.parametrize(("command", "flags"), [("train", {}), ("train-async", {}), ("train-async", {"fully_async": True})])
def test_every_preset_serves_every_schedule(bench, name, command, flags):
    assert not bench.examine(command, flags, bare=True, preset=name).problems


def test_the_preset_of_examples_serves_sft(bench):
    assert not bench.examine("sft", bare=True, preset="reverse-sft").problems
    assert bench.examine("train", bare=True, preset="reverse-sft").problems
