"""Derived values against their definitions, and rows against derived values."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.config.checks import batch_equation
from miles.config.derived import Derived, batch_sizes, count_rollouts, derive, staleness_bound
from miles.config.facts import Facts, has_nvidia_driver, read_context_len
from miles.config.resolve import examine
from miles.config.view import View
from tests.config.support import VARIANTS

pytestmark = pytest.mark.unit
INFERENCE = "miles.rollout.inference:InferenceRolloutFn"
small = st.integers(1, 12)


@given(small, small, st.none() | small, st.none() | small)
@settings(deadline=None, max_examples=150)
def test_the_batch_equation_holds_or_is_refused(groups, size, batch, steps):
    values = {
        "rollout_batch_size": groups, "n_samples_per_prompt": size, "global_batch_size": batch, "num_steps_per_rollout": steps,
    }  # fmt: skip
    solutions = [
        (b, s)
        for b in range(1, groups * size + 1)
        for s in range(1, groups * size + 1)
        if b * s == groups * size and batch in (None, b) and steps in (None, s)
    ]
    problems = list(batch_equation(View("train", {}, values, frozenset())))
    assert bool(problems) == (not solutions)
    if solutions:
        wanted = next((b, s) for b, s in solutions if s == 1) if batch is None and steps is None else solutions[0]
        assert batch_sizes(values) == wanted


@given(small, st.integers(1, 100), small)
def test_epochs_are_whole(epochs, prompts, groups):
    values = {"num_rollout": None, "num_epoch": epochs, "rollout_batch_size": groups}
    rollouts = count_rollouts(values, prompts)
    assert (rollouts - 1) * groups < epochs * prompts <= rollouts * groups


@pytest.mark.parametrize("variant", ["sync", "one_step_off", "fully_async"])
def test_rows_show_what_is_derived(bench, variant):
    command, selectors = VARIANTS[variant]
    resolution = bench.resolve(command, selectors)
    rows = {row.option: row for row in resolution.rows}
    for name in Derived.__dataclass_fields__:
        shown = {"max_context_len": "rollout_max_context_len", "max_prompt_len": "rollout_max_prompt_len"}.get(name, name)
        if shown in ("num_eval_engines", "num_critic_ranks") or (shown == "update_weights_interval" and variant == "sync"):
            assert shown not in rows
            continue
        value = getattr(resolution.derived, name)
        assert rows[shown].value == ("none" if value is None else str(value)), name
    assert resolution.derived.schedule == variant
    assert all(row.origin for row in resolution.rows)
    assert derive(resolution.config, Facts(10, 4096, False, False)) == resolution.derived


@pytest.mark.parametrize(
    ("variant", "flags", "option", "value", "arithmetic"),
    [
        ("sync", {"global_batch_size": "64"}, "num_steps_per_rollout", "4", "32 × 8 / 64 = 4"),
        ("sync", {"num_steps_per_rollout": "2"}, "global_batch_size", "128", "32 × 8 / 2 = 128"),
        ("sync", {}, "global_batch_size", "256", "32 × 8 / 1 = 256"),
        ("sync", {}, "rollout_function_path", INFERENCE, "default of miles train"),
        ("one_step_off", {}, "rollout_function_path", INFERENCE, "default of miles train-async"),
        ("fully_async", {}, "rollout_function_path", "miles.rollout.fully_async:FullyAsyncRolloutFn", "from --fully-async"),
        ("sync", {}, "eval_function_path", "miles.loops.evaluate:evaluate", "the standard evaluation"),
        ("sync", {}, "num_optimizer_steps", "10", "num_rollout × num_steps_per_rollout = 10 × 1 = 10"),
        ("sync", {"rollout_temperature": "0.5"}, "eval_temperature", "0.5", "from rollout_temperature"),
        ("sync", {"eps_clip": "0.1"}, "eps_clip_high", "0.1", "from eps_clip"),
        ("sync", {}, "rollout_max_prompt_len", "3072", "4096 − 1024 = 3072"),
        ("fully_async", {}, "staleness_bound", "4", "max_weight_staleness = 4, in weight versions"),
        ("fully_async", {}, "async_max_concurrent_samples", "1280", "5 × 32 × 8 = 1280, what the bound admits"),
        ("one_step_off", {}, "staleness_bound", "1", "weight versions: the next rollout runs while a step trains"),
        ("sync", {"num_rollout": ..., "num_epoch": "7"}, "num_rollout", "3",
         "num_epoch × num_prompts / rollout_batch_size, rounded up: 7 × 10 / 32"),
    ],
)  # fmt: skip
def test_arithmetic_is_spelled_out(bench, variant, flags, option, value, arithmetic):
    command, selectors = VARIANTS[variant]
    row = next(row for row in bench.resolve(command, selectors | flags).rows if row.option == option)
    assert (row.value, row.origin, row.derived) == (value, arithmetic, True)


def test_a_value_the_user_gave_is_never_derived(bench):
    flags = {
        "global_batch_size": "128",
        "max_tokens_per_gpu": "9",
        "eval_prompt_data": (("x", "heldout.jsonl"),),
        "eval_top_p": "0.5",
    }
    resolution = bench.resolve("train", flags)
    rows = {row.option: row for row in resolution.rows}
    for name, value in {"global_batch_size": "128", "max_tokens_per_gpu": "9", "eval_top_p": "0.5"}.items():
        assert (rows[name].value, rows[name].derived) == (value, False)


def test_micro_batches_have_one_size(bench):
    assert bench.resolve("train").derived.max_tokens_per_gpu == 4096
    derived = bench.resolve("train", {"micro_batch_size": "2"}).derived
    assert (derived.micro_batch_size, derived.max_tokens_per_gpu) == (2, None)
    assert staleness_bound("sync", {}) == 0


def test_an_incomplete_configuration_still_has_rows(bench):
    found = bench.examine("train", bare=True)
    rows = {row.option: row for row in found.rows}
    assert found.config is None
    assert rows["hf_checkpoint"].value == ""
    assert rows["lr"].value == "1e-6"
    assert not any(row.derived for row in found.rows)


def test_options_without_effect_say_so(bench):
    rows = {row.option: row for row in bench.resolve("train").rows}
    assert rows["tis_clip"].note == "no effect here"
    assert not rows["lr"].note


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"deterministic": True}, "--max-weight-staleness 0 makes the run repeatable"),
        ({"async_data_buffer_capacity_factor": "9"}, "no effect above 5"),
        ({"async_max_concurrent_samples": "99999"}, "no effect above 1280"),
    ],
)
def test_what_surprises_warns(bench, flags, words):
    (warning,) = bench.resolve("train-async", {"fully_async": True} | flags).warnings
    assert words in warning


def test_the_model_limit_may_be_nested(tmp_path):
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 7}}')
    assert read_context_len(tmp_path) == 7


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_devices_are_not_there(hidden):
    assert not has_nvidia_driver({"CUDA_VISIBLE_DEVICES": hidden})


def test_examining_does_not_import_user_code(bench):
    assert not examine("train", bench.sources({"custom_rm_path": "no.such:thing", "rm_type": ...})).problems
