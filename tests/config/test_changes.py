"""Changes of a resumed run: every option has its class, and only what may change is taken."""

from pathlib import Path

import pytest

from miles.config.changes import changes_between, compare_with_recorded, flat
from miles.config.registry import all_options, option_table
from miles.config.toml_out import NOT_WRITTEN, config_toml
from miles.errors import ConfigError
from tests.config.support import VARIANTS, flag_value, good_values, owned_names

pytestmark = pytest.mark.unit
FOLDER = Path("/runs/one")
READY = [
    option.name
    for option in all_options()
    if not option.meta.selector and option.name not in NOT_WRITTEN and option.meta.kind not in ("file", "folder")
    if any(option.name in owned_names(variant) for variant in ("sync", "one_step_off", "fully_async"))
]


def started(bench, command="train", flags=None, **more):
    return config_toml(bench.resolve(command, flags, **more))


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant != "sft"])
def test_the_same_options_again_are_no_change(bench, variant):
    command, selectors = VARIANTS[variant]
    flags = {**selectors, "lr": "0.25", "eval_prompt_data": (("x", "heldout.jsonl"),), "rollout_stop": ("a", "b")}
    again = bench.resolve(command, flags | {"run_dir": "elsewhere", "accept_changes": True})
    assert changes_between(started(bench, command, flags), again) == ()


@pytest.mark.parametrize("name", READY)
def test_a_changed_option_is_found_with_its_class(bench, name):
    variant = next(variant for variant in ("sync", "one_step_off", "fully_async") if name in owned_names(variant))
    command, selectors = VARIANTS[variant]
    recorded = started(bench, command, selectors)
    for value in good_values(option_table()[name]):
        found = bench.examine(command, {**selectors, name: flag_value(value)})
        if found.problems or found.config is None:
            continue
        now = bench.resolve(command, {**selectors, name: flag_value(value)})
        changed = {change.option: change for change in changes_between(recorded, now)}
        if found_value(now, name) != found_value(bench.resolve(command, selectors), name):
            assert changed[name].change_class == option_table()[name].meta.on_resume
        else:
            assert name not in changed


def found_value(resolution, name):
    return getattr(getattr(resolution.config, option_table()[name].section), name)


def test_safe_changes_are_taken_and_told(bench):
    recorded = started(bench, flags={"save_interval": "5"})
    now = bench.resolve("train", {"num_rollout": "20", "save_interval": "7"})
    changes = compare_with_recorded(recorded, now, FOLDER)
    assert [str(change) for change in changes] == ["save_interval: 5 → 7  (safe)", "num_rollout: 10 → 20  (safe)"]


def test_a_change_of_course_must_be_accepted(bench):
    recorded = started(bench, flags={"lr": "1e-5"})
    flags = {"lr": "3e-5", "seed": "5", "num_rollout": "20"}
    with pytest.raises(ConfigError) as caught:
        compare_with_recorded(recorded, bench.resolve("train", flags), FOLDER)
    assert [str(problem) for problem in caught.value.problems] == [
        f"{name} = {value} ({origin}): {diff} changes the course of the run in /runs/one. Pass --accept-changes to go on "
        "with it, give the recorded value, or a new --run-dir"
        for name, value, origin, diff in [
            ("lr", "3e-5", "--lr", "1e-5 → 3e-5"),
            ("seed", "5", "--seed", "1234 → 5"),
        ]
    ]
    assert caught.value.notes == (
        "changed since the run in /runs/one was started:",
        "  num_rollout: 10 → 20  (safe)",
        "  lr: 1e-5 → 3e-5  (changes the course of the run)",
        "  seed: 1234 → 5  (changes the course of the run)",
    )
    accepted = compare_with_recorded(recorded, bench.resolve("train", flags | {"accept_changes": True}), FOLDER)
    assert [(change.option, change.change_class) for change in accepted] == [
        ("num_rollout", "safe"),
        ("lr", "course"),
        ("seed", "course"),
    ]


@pytest.mark.parametrize(("name", "value"), [("n_samples_per_prompt", "4"), ("hf_checkpoint", "other")])
def test_what_the_ledger_and_the_weights_rest_on_never_changes(bench, name, value):
    (bench.folder / "other").mkdir(exist_ok=True)
    (bench.folder / "other" / "config.json").write_text('{"max_position_embeddings": 4096}')
    now = bench.resolve("train", {name: value, "accept_changes": True})
    with pytest.raises(ConfigError) as caught:
        compare_with_recorded(started(bench), now, FOLDER)
    (problem,) = caught.value.problems
    assert problem.option == name
    assert "is impossible" in problem.why
    assert "--accept-changes" not in problem.remedy


def test_another_schedule_is_a_change(bench):
    changes = changes_between(started(bench, "train-async"), bench.resolve("train-async", {"fully_async": True}))
    assert "fully_async" in [change.option for change in changes]


def test_an_option_that_a_recorded_file_does_not_know_has_its_default(bench):
    recorded = "\n".join(line for line in started(bench).splitlines() if not line.startswith("adam_beta1"))
    assert changes_between(recorded, bench.resolve("train")) == ()
    changes = changes_between(recorded, bench.resolve("train", {"adam_beta1": "0.5"}))
    assert [str(change) for change in changes] == ["adam_beta1: 0.9 → 0.5  (changes the course of the run)"]


def test_an_option_that_is_gone_is_a_change(bench):
    (change,) = changes_between("once_upon = 3\n" + started(bench), bench.resolve("train"))
    assert str(change) == "once_upon: 3 → not given  (changes the course of the run)"


def test_tables_are_laid_flat():
    assert flat("a = 1\n[train]\nb = {x = 2}\n[train-async.fully-async]\nc = 3") == {"a": 1, "b": {"x": 2}, "c": 3}
