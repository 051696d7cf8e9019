"""``miles sft`` in the configuration: what it derives, refuses, writes down and plans."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles.config.changes import changes_between
from miles.config.commands import SftConfig
from miles.config.fit import Machine
from miles.config.plan import make_sft_plan
from miles.config.records import record_text
from miles.config.resolve import resolve, resolve_sft
from miles.config.sft import count_steps
from miles.config.sources import Sources
from miles.config.toml_out import config_toml
from miles.errors import ConfigError
from tests.config.support import OF_SFT

pytestmark = pytest.mark.unit


def resolved(bench, **flags):
    return bench.resolve("sft", flags)


@given(st.integers(1, 9), st.integers(1, 200), st.integers(1, 50))
def test_epochs_become_steps_rounded_up(epochs, examples, size):
    steps = count_steps({"train_iters": None, "num_epoch": epochs, "global_batch_size": size}, examples)
    assert steps == math.ceil(epochs * examples / size)
    assert count_steps({"train_iters": 7, "num_epoch": None, "global_batch_size": size}, examples) == 7


def test_what_follows_is_derived_and_shown(bench):
    found = resolved(bench, train_iters=..., num_epoch="3", global_batch_size="4")
    assert isinstance(found.config, SftConfig)
    assert (found.derived.schedule, found.derived.num_engines, found.derived.num_optimizer_steps) == ("sft", 0, 8)
    rows = {row.option: row for row in found.rows}
    assert rows["train_iters"].arithmetic.endswith("3 × 10 / 4")
    assert rows["num_examples"].value == "10"
    assert "rollout_batch_size" not in rows and "engine" not in rows


@pytest.mark.parametrize(
    ("flags", "option", "words"),
    [
        ({"fully_async": True}, "fully_async", "belongs to `miles train-async`"),
        ({"rollout_batch_size": "3"}, "rollout_batch_size", "belongs to `miles train`"),
        ({"num_epoch": "2"}, "train_iters", "goes together with num_epoch"),
        ({"train_iters": ...}, "train_iters", "is not set, and neither is num_epoch"),
        ({"lr_warmup_iters": "10"}, "lr_warmup_iters", "leaves nothing of the run"),
        ({"actor_num_gpus_per_node": "40"}, "actor_num_gpus_per_node", "but a step has 32 examples"),
        ({"example_format": "messages"}, "messages_key", "is no key of line 1"),
        ({"label_key": "answer"}, "label_key", "is no key of line 1 of prompts.jsonl, which has prompt, label"),
        ({"label_key": "none"}, "label_key", "is needed by example_format"),
        ({"messages_key": "turns"}, "messages_key", "has no effect while example_format"),
    ],
)
def test_what_cannot_be_is_refused(bench, flags, option, words):
    with pytest.raises(ConfigError) as caught:
        resolved(bench, **flags)
    assert [(p.option, words in p.why) for p in caught.value.problems] == [(option, True)]


def test_the_other_commands_refuse_its_options(bench):
    (problem,) = bench.examine("train", {"train_iters": "3"}).problems
    assert problem.why == "--train-iters belongs to `miles sft`"
    with pytest.raises(TypeError, match="resolve_sft"):
        resolve("sft", bench.sources(OF_SFT))


def test_what_is_written_down_runs_the_same_again(bench, tmp_path):
    held = (("held", str(bench.folder / "heldout.jsonl")),)
    first = resolved(bench, lora_rank="4", eval_prompt_data=held, seed="7")
    (tmp_path / "config.toml").write_text(config_toml(first))
    again = resolve_sft(Sources(config_files=(tmp_path / "config.toml",), environ={}, cwd=tmp_path))
    assert again.config == first.config
    assert not changes_between(config_toml(first), again)
    more = resolved(bench, lora_rank="4", eval_prompt_data=held, seed="7", train_iters="20")
    (longer,) = changes_between(config_toml(first), more)
    assert (longer.option, longer.change_class) == ("train_iters", "safe")
    assert '"command": "sft"' in record_text(first)


def test_the_plan_says_what_a_run_does(bench):
    held = (("held", str(bench.folder / "heldout.jsonl")),)
    lines = "\n".join(
        make_sft_plan(resolved(bench, eval_prompt_data=held, eval_interval="4", save_interval="5"), Machine(2**36)).lines()
    )
    assert "10 optimiser steps of 32 examples: 32 passes over 10" in lines
    assert "measures the loss on held 4 times: before the first rollout, after 4, 8, 10" in lines
    assert "saves a checkpoint 2 times: after 5, 10" in lines
