"""Sending LoRA adapters alone: what it resolves to, and everything that does not go with it."""

import pytest

from miles.config.fit import Machine
from miles.config.plan import make_plan
from tests.config.support import refuse
from tests.pretend import a_machine_with

pytestmark = pytest.mark.unit
ALONE = {"lora_rank": "4", "lora_publish": "adapter"}
GPUS = ALONE | {"device": "cuda"}


@pytest.mark.parametrize(("command", "flags", "option", "words"), [
    ("train", {"lora_publish": "adapter"}, "lora_publish", ["no effect while lora_rank is not set", "Pass --lora-rank"]),
    ("sft", ALONE, "lora_publish", ["belongs to"]),
    ("train", ALONE | {"update_weight_transfer_mode": "tensor"}, "update_weight_transfer_mode", ["travel as files"]),
    ("train", ALONE | {"rollout_external_engine_addrs": ["localhost:1"]}, "rollout_external_engine_addrs", ["since their start"]),
    ("train", ALONE | {"colocate": True}, "colocate", ["nothing brings them back"]),
    ("train", ALONE | {"actor_num_nodes": "2"}, "actor_num_nodes", ["memory of the policy's"]),
    ("train", ALONE | {"router_policy": "random", "rollout_num_gpus": "2"}, "router_policy", ["go to engines directly"]),
    ("train", ALONE | {"check_weight_update": True, "dtype": "bfloat16"}, "check_weight_update", ["bfloat16 already"]),
    ("train", ALONE | {"engine": "sglang"}, "lora_publish", ["pin host memory", "Pass --engine embedded"]),
    ("train", GPUS | {"check_weight_update": True}, "check_weight_update", ["keeps adapters apart"]),
    ("train", GPUS | {"eval_num_gpus": "1"}, "eval_num_gpus", ["brings whole weights"]),
    ("train", GPUS | {"lora_targets": ["lm_head"]}, "lora_targets", ["names lm_head", "q_proj"]),
    ("train-async", GPUS | {"fully_async": True}, "fully_async", ["the adapter they began with", "--engine embedded"]),
])  # fmt: skip
def test_what_does_not_go_with_adapters_alone_is_refused(bench, command, flags, option, words):
    with a_machine_with(has_sglang=True, has_cuda=flags.get("device") == "cuda"):
        problems = refuse(bench, command, flags, preset="reverse-sft" if command == "sft" else "reverse")
    (problem,) = [problem for problem in problems if problem.option == option]
    assert all(word in str(problem) for word in words), str(problem)


@pytest.mark.parametrize("command", ["train", "train-async"])
def test_adapters_go_through_a_folder_and_no_router(bench, command):
    with a_machine_with(has_sglang=True, has_cuda=True, has_router=True):
        resolution = bench.resolve(command, GPUS | {"rollout_num_gpus": "2"})
    rows = {row.option: (row.value, row.origin) for row in resolution.rows}
    assert rows["update_weight_transfer_mode"] == ("disk", "auto: adapters travel as files")
    assert rows["router_policy"] == ("none", "auto: it is not asked for adapters")
    assert "adapters are published after every rollout, through a folder" in make_plan(resolution, Machine(8 << 30)).schedule
