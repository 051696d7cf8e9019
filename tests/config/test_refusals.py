"""What must be refused: each with the option, its value, its origin, why, and the way out; and what must pass."""

import pytest

from miles.config.resolve import resolve
from miles.errors import ConfigError
from tests.config.support import refuse

pytestmark = pytest.mark.unit
FULLY = {"fully_async": True}


ON_TOP_OF_THE_PRESET = [
    ("train", FULLY, {}, [], "fully_async", ["--fully-async belongs to `miles train-async`"]),
    ("train-async", {"colocate": True}, {}, [], "colocate", ["--colocate belongs to `miles train`"]),
    (
        "train-async",
        FULLY | {"rollout_function_path": "a.b.C"},
        {},
        [],
        "rollout_function_path",
        ["--fully-async", "both choose"],
    ),
    (
        "train-async",
        FULLY,
        {"MILES_ROLLOUT_FUNCTION_PATH": "a.b"},
        [],
        "rollout_function_path",
        ["($MILES_ROLLOUT_FUNCTION_PATH)"],
    ),
    (
        "train-async",
        {"max_weight_staleness": "2"},
        {},
        [],
        "max_weight_staleness",
        ["= 2 (--max-weight-staleness)", "--fully-async"],
    ),
    ("train", {"max_weight_staleness": "2"}, {}, [], "max_weight_staleness", ["miles train-async", "--fully-async"]),
    (
        "train-async",
        FULLY,
        {"MILES_EXPERIMENTAL_ROLLOUT_REFACTOR": "0"},
        [],
        "rollout_api",
        ["= function ($MILES_EXPERIMENTAL_ROLLOUT_REFACTOR)", "does not go with --fully-async", "leave --fully-async out"],
    ),
    (
        "train",
        {"gamma": "0.9"},
        {},
        [],
        "gamma",
        ["has no effect while advantage_estimator = grpo", "--advantage-estimator to ppo"],
    ),
    ("train", {"advantage_estimator": "ppo", "num_critic_only_steps": "150"}, {}, [], "num_critic_only_steps", ["at most 149"]),
    ("train", {"advantage_estimator": "ppo", "critic_lr_warmup_iters": "150"}, {}, [], "critic_lr_warmup_iters", ["at most 149"]),
    (
        "train",
        {"advantage_estimator": "ppo", "num_critic_only_steps": "100", "lr_warmup_iters": "50"},
        {},
        [],
        "lr_warmup_iters",
        ["optimiser steps: 50", "at most 49"],
    ),
    (
        "train",
        {"advantage_estimator": "ppo", "critic_load": "gone"},
        {},
        [],
        "critic_load",
        ["no such folder", "--critic-load out"],
    ),
    ("train", {"proximal_policy": "recomputed"}, {}, [], "proximal_policy", ["--off-policy-correction to decoupled"]),
    ("train", {"optimizer_cpu_offload": True}, {}, [], "optimizer_cpu_offload", ["in host memory already", "--device cuda"]),
    ("train", {}, {"MILES_EXPERIMENTAL_ROLLOUT_REFACTOR": "0"}, [], "rollout_api", ["none is named", "--rollout-function-path"]),
    ("train", {"over_sampling_batch_size": "15"}, {}, [], "over_sampling_batch_size", ["rollout_batch_size = 16", "at least 16"]),
    (
        "train-async",
        {"over_sampling_batch_size": "32", "rollout_function_path": "a.b:c"},
        {},
        [],
        "over_sampling_batch_size",
        ["no effect while rollout_function_path"],
    ),
    ("train", {}, {"MILES_EXPERIMENTAL_ROLLOUT_REFACTOR": "yes"}, [], "rollout_api", ["= yes", "neither 1 nor 0"]),
    ("train-async", {}, {"MILES_FULLY_ASYNC": "1"}, [], "fully_async", ["($MILES_FULLY_ASYNC)", "pass --fully-async"]),
    ("train", {}, {"MILES_FULLY_ASYNC": ""}, [], "fully_async", ["pass --fully-async to `miles train-async`"]),
    ("train", {}, {}, ["fully_async = true"], "fully_async", [".toml:1)", "miles train-async"]),
    ("train", {}, {}, ["lerning_rate = 1"], "lerning_rate", ["= 1 (", ".toml:1)", "there is no such option. Did you mean lr?"]),
    ("train", {}, {}, ["lr = ["], "config", [".toml:1)", "is not TOML", "lr = [\n          ^"]),
    (
        "train",
        {"prompt_data": "nowhere.jsonl"},
        {},
        [],
        "prompt_data",
        ["= nowhere.jsonl (--prompt-data)", "there is no such file"],
    ),
    (
        "train",
        {"hf_checkpoint": "org/model"},
        {},
        [],
        "hf_checkpoint",
        ["= org/model (--hf-checkpoint)", "no such folder", "download"],
    ),
    ("train", {"hf_checkpoint": "."}, {}, [], "hf_checkpoint", ["it has no config.json"]),
    ("train", {"prompt_data": "model"}, {}, [], "prompt_data", ["is a folder"]),
    (
        "train",
        {"eval_prompt_data": (("a", "heldout.jsonl"), ("a", "heldout.jsonl"))},
        {},
        [],
        "eval_prompt_data",
        ["the name a twice"],
    ),
    (
        "train",
        {"eval_prompt_data": (("a", "gone.jsonl"),)},
        {},
        [],
        "eval_prompt_data",
        ["a: there is no such file", "gone.jsonl"],
    ),
    ("train", {"eval_prompt_data": ((" ", "heldout.jsonl"),)}, {}, [], "eval_prompt_data", ["without a name"]),
    ("train", {"run_dir": "prompts.jsonl"}, {}, [], "run_dir", ["is a file, and a folder is needed"]),
    ("train", {"save": "prompts.jsonl"}, {}, [], "save", ["is a file, and a folder is needed"]),
    (
        "train",
        {"n_samples_per_prompt": "0"},
        {},
        [],
        "n_samples_per_prompt",
        ["= 0 (--n-samples-per-prompt)", "must be at least 1"],
    ),
    ("train-async", FULLY | {"max_weight_staleness": "-1"}, {}, [], "max_weight_staleness", ["must be at least 0"]),
    ("train-async", {"update_weights_interval": "0"}, {}, [], "update_weights_interval", ["must be at least 1"]),
    ("train", {"rollout_temperature": "0"}, {}, [], "rollout_temperature", ["= 0 (--rollout-temperature)", "must be above 0"]),
    ("train", {"rollout_top_p": "1.5"}, {}, [], "rollout_top_p", ["must be at most 1", "above 0 and of at most 1"]),
    ("train", {"eps_clip": "1"}, {}, [], "eps_clip", ["must be below 1"]),
    ("train-async", FULLY | {"pause_generation_mode": "abort"}, {}, [], "pause_generation_mode", ["retract, in_place"]),
    ("train-async", FULLY | {"pause_generation_mode": "in-place"}, {}, [], "pause_generation_mode", ["Did you mean in_place?"]),
    ("train-async", FULLY | {"partial_rollout": True}, {}, [], "partial_rollout", ["does not count with --fully-async"]),
    ("train", {"lr": "nan"}, {}, [], "lr", ["= nan (--lr)", "not a finite number"]),
    ("train", {}, {}, ["lr = inf"], "lr", ["= inf (", "not a finite number"]),
    ("train-async", {"fully": True}, {}, [], "--fully", ["Did you mean --fully-async?"]),
    (
        "train",
        {"global_batch_size": "7"},
        {},
        [],
        "global_batch_size",
        ["= 7 (--global-batch-size)", "16 × 8 = 128", "divisor of 128"],
    ),
    ("train", {"num_steps_per_rollout": "3"}, {}, [], "num_steps_per_rollout", ["does not divide", "16 × 8 = 128"]),
    (
        "train",
        {"global_batch_size": "64", "num_steps_per_rollout": "3"},
        {},
        [],
        "global_batch_size",
        ["contradicts num_steps_per_rollout = 3 (--num-steps-per-rollout)", "64 × 3 = 192", "16 × 8 = 128"],
    ),
    ("train", {"num_rollout": "3", "num_epoch": "1"}, {}, [], "num_rollout", ["num_epoch = 1 (--num-epoch)", "--num-epoch none"]),
    ("train", {"rm_type": "exact", "custom_rm_path": "a.b"}, {}, [], "rm_type", ["custom_rm_path = a.b (--custom-rm-path)"]),
    ("train", {"rm_type": "none"}, {}, [], "rm_type", ["neither is custom_rm_path", "Pass --rm-type or --custom-rm-path"]),
    ("train", {"label_key": "none"}, {}, [], "label_key", ["is needed by rm_type = exact"]),
    ("train", {"micro_batch_size": "2", "max_tokens_per_gpu": "9"}, {}, [], "micro_batch_size", ["max_tokens_per_gpu = 9"]),
    ("train", {"min_lr": "1", "lr_decay_style": "cosine"}, {}, [], "min_lr", ["is not below lr = 0.0002 (preset reverse)"]),
    (
        "train",
        {"min_lr": "1e-9", "lr_decay_style": "constant"},
        {},
        [],
        "min_lr",
        ["no effect while lr_decay_style = constant", "linear or cosine"],
    ),
    ("train", {"lr_warmup_iters": "150"}, {}, [], "lr_warmup_iters", ["optimiser steps: 150"]),
    ("train", {"rollout_max_response_len": "256"}, {}, [], "rollout_max_response_len", ["the model's 256 tokens"]),
    ("train", {"rollout_max_context_len": "257"}, {}, [], "rollout_max_context_len", ["limit of 256"]),
    ("train", {"rollout_max_context_len": "8"}, {}, [], "rollout_max_response_len", ["rollout_max_context_len = 8"]),
    ("train", {"rollout_max_context_len": "20", "rollout_max_prompt_len": "13"}, {}, [], "rollout_max_prompt_len", ["make 21"]),
    ("train", {"rollout_max_prompt_len": "250"}, {}, [], "rollout_max_prompt_len", ["make 258", "the model's 256"]),
    ("train", {"eval_max_response_len": "256"}, {}, [], "eval_max_response_len", ["no room for a prompt in 256"]),
    ("train", {"tis_clip": "3"}, {}, [], "tis_clip", ["no effect while off_policy_correction = none", "tis or icepop"]),
    ("train-async", {"tis_clip_low": "3"}, {}, [], "tis_clip_low", ["is above tis_clip = 2.0"]),
    ("train-async", {"rollout_top_p": "0.9"}, {}, [], "rollout_top_p", ["off_policy_correction = tis", "before top-p and top-k"]),
    (
        "train",
        {"rollout_top_k": "5", "off_policy_correction": "icepop"},
        {},
        [],
        "rollout_top_k",
        ["--off-policy-correction to none"],
    ),
    ("train", {"rollout_top_k": "0"}, {}, [], "rollout_top_k", ["keeps no token"]),
    ("train", {"eval_top_k": "0"}, {}, [], "eval_top_k", ["keeps no token"]),
    (
        "train",
        {"advantage_estimator": "dr_grpo", "grpo_std_normalization": "true"},
        {},
        [],
        "grpo_std_normalization",
        ["no effect while advantage_estimator = dr_grpo"],
    ),
    (
        "train",
        {"keep_checkpoints": "2", "keep_best_by": "eval/other"},
        {},
        [],
        "keep_best_by",
        ["no metric that an evaluation of this run writes", "Give --keep-best-by eval/reverse"],
    ),
    ("train", {"keep_best_by": "eval/reverse"}, {}, [], "keep_best_by", ["no effect while keep_checkpoints is not set"]),
    ("train", {"eps_clip_c": "1"}, {}, [], "eps_clip_c", ["must be above 1"]),
    ("train", {"ref_load": "model"}, {}, [], "ref_load", ["no effect while", "--use-kl-loss"]),
    ("train", {"use_kl_loss": True, "ref_load": "nowhere"}, {}, [], "ref_load", ["there is no such folder"]),
    (
        "train-async",
        FULLY | {"async_max_concurrent_samples": "7"},
        {},
        [],
        "async_max_concurrent_samples",
        ["n_samples_per_prompt = 8"],
    ),
    (
        "train-async",
        FULLY | {"async_data_buffer_capacity_factor": "0.5"},
        {},
        [],
        "async_data_buffer_capacity_factor",
        ["at least 1"],
    ),
    ("train", {"actor_num_gpus_per_node": "129"}, {}, [], "actor_num_gpus_per_node", ["129 ranks", "has 128 samples"]),
    (
        "train",
        {"actor_num_gpus_per_node": "4", "actor_num_gpus_per_replica": "3"},
        {},
        [],
        "actor_num_gpus_per_replica",
        ["does not divide the policy's ranks", "= 4"],
    ),
    (
        "train",
        {"rollout_num_gpus_per_engine": "2", "rollout_num_gpus": "2"},
        {},
        [],
        "rollout_num_gpus_per_engine",
        ["embedded engine"],
    ),
    (
        "train",
        {"engine": "sglang", "deterministic": True},
        {},
        [],
        "deterministic",
        ["no deterministic form", "Pass --engine embedded"],
    ),
    (
        "train",
        {"engine": "sglang", "rollout_num_gpus_per_engine": "2", "rollout_num_gpus": "2"},
        {},
        [],
        "rollout_num_gpus_per_engine",
        ["on a CPU"],
    ),
    ("train", {"engine": "embedded"}, {}, ["sglang = [['page-size', '1']]"], "sglang", ["no effect while engine = embedded"]),
    ("train", {"kl_loss_coef": "0.1"}, {}, [], "kl_loss_coef", ["no effect while use_kl_loss is not set", "Pass --use-kl-loss"]),
    ("train", {"reward_key": "x"}, {}, [], "reward_key", ["no effect while custom_rm_path is not set"]),
    (
        "train",
        {"colocate": True, "actor_num_gpus_per_node": "4", "rollout_num_gpus_per_engine": "3"},
        {},
        [],
        "rollout_num_gpus_per_engine",
        ["does not divide the policy's devices", "= 4"],
    ),
    (
        "train",
        {"colocate": True, "rollout_external_engine_addrs": ("127.0.0.1:1",)},
        {},
        [],
        "colocate",
        ["take turns with the policy", "Leave --colocate out"],
    ),
    (
        "train",
        {"update_weight_transfer_mode": "disk", "update_weight_buffer_size": "1000"},
        {},
        [],
        "update_weight_buffer_size",
        ["no effect while update_weight_transfer_mode = disk"],
    ),
]


@pytest.mark.parametrize(("command", "flags", "env", "files", "option", "words"), ON_TOP_OF_THE_PRESET)
def test_refused(bench, command, flags, env, files, option, words):
    problems = refuse(bench, command, flags, env, files)
    assert [problem.option for problem in problems] == [option]
    for word in words:
        assert word in str(problems[0])
    assert problems[0].remedy


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
