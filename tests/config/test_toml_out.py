"""The config.toml of a run resolves to the run's configuration again."""

import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miles.config.registry import option_table
from miles.config.resolution import Resolution
from miles.config.resolve import resolve
from miles.config.sources import Sources
from miles.config.toml_out import NOT_WRITTEN, config_toml, lines_about
from miles.config.view import GIVEN
from miles_cli.render import differs
from tests.config.support import VARIANTS, flag_value, good_values, owned_names

pytestmark = pytest.mark.unit
TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from('\n\t"\\#['), min_size=1, max_size=8)
SETTINGS = {
    "lr": st.floats(1e-12, 10),
    "weight_decay": st.floats(0, 1),
    "n_samples_per_prompt": st.integers(1, 9),
    "rollout_stop": st.lists(TEXTS, max_size=3).map(tuple),
    "rollout_stop_token_ids": st.lists(st.integers(0, 9), max_size=3).map(tuple),
    "rollout_shuffle": st.booleans(),
    "reward_key": TEXTS.filter(lambda text: text.strip() and text.lower() != "none"),
    "metadata_key": TEXTS.filter(lambda text: text.strip() and text.lower() != "none"),
    "label_key": st.sampled_from(["answer", "none"]),
    "eps_clip_high": st.floats(0, 1),
    "save": st.just("somewhere"),
    "loss_aggregation": st.sampled_from(["token-mean", "sequence-mean"]),
    "off_policy_correction": st.sampled_from(["none", "tis", "icepop"]),
    "micro_batch_size": st.integers(1, 9),
    "eval_prompt_data": st.just((("a b", "heldout.jsonl"), ("c", "heldout.jsonl"))),
    "save_interval": st.integers(1, 9),
    "seed": st.integers(0, 2**40),
}
OWN = {
    "sync": {"rollout_function_path": st.just("a.b:C")},
    "one_step_off": {"update_weights_interval": st.integers(1, 4), "rollout_function_path": st.just("a.b:C")},
    "fully_async": {"max_weight_staleness": st.integers(0, 9), "pause_generation_mode": st.sampled_from(["retract", "in_place"])},
}


@pytest.mark.parametrize("variant", OWN)
def test_the_same_configuration_comes_back(bench, variant, tmp_path):
    command, selectors = VARIANTS[variant]

    @given(st.fixed_dictionaries({}, optional=SETTINGS | OWN[variant]))
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def law(flags):
        if flags.get("label_key") == "none":
            flags |= {"rm_type": "none", "custom_rm_path": "a.b:c"}
        else:
            flags.pop("reward_key", None)
        first = bench.resolve(command, selectors | flags)
        text = config_toml(first)
        path = bench.file(text)
        again = resolve(command, Sources(config_files=(path,), cwd=tmp_path))
        assert again.config == first.config
        assert again.derived == first.derived
        assert not again.warnings
        assert keys(config_toml(again)) == keys(text)

    law()


@pytest.mark.parametrize("variant", OWN)
def test_every_option_comes_back_from_the_whole_file_or_from_what_was_changed(bench, variant, tmp_path):
    command, selectors = VARIANTS[variant]
    seen = 0
    secret = {name for name in owned_names(variant) if option_table()[name].meta.secret}
    for name in sorted(owned_names(variant) - set(NOT_WRITTEN) - secret):
        found = bench.examine(command, selectors | alone(option_table()[name]))
        if found.problems:
            continue  # what it needs beside it, or a file; see the law above
        first = Resolution(command, found.config, found.derived, found.rows, found.warnings)
        text = config_toml(first)
        changed = lines_about(text, {row.option for row in first.rows if differs(row)})
        again = resolve(command, Sources(config_files=(bench.file((text, changed)[seen % 2]),), cwd=tmp_path))
        assert again.config == first.config, name
        seen += 1
    assert seen > 60


def alone(option):
    """Flags that give an option one value and make it count."""
    flags = {}
    for other, wanted in list(option.meta.counts_when.items())[:1]:
        value = good_values(option_table()[other])[0] if GIVEN in wanted else wanted[0]
        flags[other] = flag_value(value)
    flags[option.name] = flag_value(good_values(option)[0])
    if option.meta.alternative:
        flags[option.meta.alternative] = ...
    if "eval_prompt_data" in flags:
        flags["eval_prompt_data"] = (("a", "heldout.jsonl"),)
    return flags


def keys(text):
    return tomllib.loads(text)


def test_options_stand_in_the_table_of_their_owner(bench):
    content = keys(config_toml(bench.resolve("train-async", {"fully_async": True, "lr": "3"})))
    assert content["lr"] == 3.0
    assert content["train-async"]["fully_async"] is True
    assert content["train-async"]["off_policy_correction"] == "tis"
    assert content["train-async"]["fully-async"]["max_weight_staleness"] == 4
    assert "off_policy_correction" not in content


def test_the_same_file_serves_the_other_command(bench):
    path = bench.file(config_toml(bench.resolve("train-async", {"fully_async": True, "lr": "3"})))
    resolution = resolve("train", Sources(config_files=(path,), cwd=bench.folder))
    assert resolution.config.optimizer.lr == 3
    assert resolution.config.algorithm.off_policy_correction == "none"


def test_comments_tell_origins_and_derived_values(bench):
    text = config_toml(bench.resolve("train", {"lr": "3"}, {"MILES_LR": "2"}))
    assert "lr = 3.0  # --lr · over $MILES_LR (2)\n" in text
    assert "#   num_optimizer_steps = 10  (num_rollout × num_steps_per_rollout = 10 × 1 = 10)\n" in text
    assert "# global_batch_size = 256  # 32 × 8 / 1 = 256\n" in text
    assert "#     miles train --config config.toml\n" in text


def test_the_run_folder_is_left_out_so_that_a_run_again_is_a_new_run(bench):
    text = config_toml(bench.resolve("train", {"run_dir": "here"}))
    assert "run_dir" not in keys(text)


def test_paths_are_absolute_and_secrets_absent(bench):
    text = config_toml(bench.resolve("train", {"prompt_data": "prompts.jsonl", "use_wandb": "true", "wandb_key": "s3cr3t"}))
    assert keys(text)["prompt_data"] == str(bench.folder / "prompts.jsonl")
    assert keys(text)["use_wandb"] is True
    assert "wandb_key" not in keys(text)
    assert "s3cr3t" not in text


def test_what_has_no_effect_is_not_set(bench):
    content = keys(config_toml(bench.resolve("train")))
    assert "eval_interval" not in content
    assert "tis_clip" not in content
