"""A plan against the memory of devices: what is too small is said with options that make it smaller."""

import json
import re
from dataclasses import replace

import pytest

from miles.config.devices import Gpu, find_gpus, host_memory
from miles.config.fit import WAYS, Machine, fits_of, machine_of, shortage, warnings_of_fit
from miles.config.memory import GIB, estimate
from miles.config.registry import find_option
from miles.config.resolve import resolve
from miles_cli.app import app
from tests.config.test_memory import PUBLISHED
from tests.pretend import a_machine_with

pytestmark = pytest.mark.unit
STATED = Machine(64 * GIB, 40 * GIB, None, "--gpu-memory-gib")


@pytest.fixture(scope="module")
def planned(bench):
    """A run of a 4 B model on GPUs, its memory and its fits."""
    folder = bench.folder / "four"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PUBLISHED["Qwen3-4B"][0] | {"max_position_embeddings": 40960}))

    def plan(machine=STATED, *, command="train", **flags):
        given = {"hf_checkpoint": str(folder), "device": "cuda", "rollout_max_context_len": "8192"} | flags
        with a_machine_with(has_cuda=True, has_sglang=True):
            resolution = resolve(command, bench.sources(given))
        memory = estimate(resolution)
        fits = fits_of(memory, resolution, machine)
        return memory, fits, list(warnings_of_fit(fits, resolution))

    return plan


def test_ranks_and_engines_are_held_against_a_gpu(planned):
    memory, fits, warnings = planned()
    assert [(fit.place, fit.needed, fit.has) for fit in fits] == [
        ("each trainer rank", sum(memory.policy.values()), 40 * GIB),
        ("each engine device", sum(memory.engine.values()), 40 * GIB),
    ]
    assert [fit.is_enough for fit in fits] == [False, True]
    (warning,) = warnings
    assert warning.startswith("each trainer rank: about ")
    assert "and a GPU (--gpu-memory-gib) has 40.0 GiB. Lower it with " in warning


def test_following_what_is_named_makes_it_fit(planned):
    _, _, (warning,) = planned()
    ways = re.findall(r"--[a-z-]+", warning.partition("Lower it with ")[2])
    lowered = ["--gradient-checkpointing", "--max-tokens-per-gpu", "--dtype"]
    assert ways == [*lowered, "--actor-num-gpus-per-node", "--optimizer-cpu-offload"]
    flags = {"gradient_checkpointing": True, "dtype": "bfloat16", "actor_num_gpus_per_node": "4", "max_tokens_per_gpu": "8192"}
    _, fits, warnings = planned(**flags)
    assert all(fit.is_enough for fit in fits)
    assert warnings == []


def test_what_is_used_already_is_not_named(planned):
    _, _, warnings = planned(
        Machine(64 * GIB, GIB, None, "nvidia-smi"), gradient_checkpointing=True, dtype="bfloat16", engine="sglang"
    )
    assert all("--gradient-checkpointing" not in warning and "bfloat16" not in warning for warning in warnings)
    assert any(warning.startswith("each engine device") and "--rollout-num-gpus-per-engine" in warning for warning in warnings)
    assert all("--engine-max-running-requests" not in warning for warning in warnings)


def test_every_way_is_an_option_that_there_is():
    assert all(find_option(name) for names in WAYS.values() for name in names)


def test_every_part_has_a_way(planned):
    memory, _, _ = planned(use_kl_loss=True, advantage_estimator="ppo")
    apart, fits, warnings = planned(advantage_estimator="ppo", critic_num_gpus_per_node="1")
    assert {*memory.policy, *memory.engine, *apart.critic} <= WAYS.keys()
    assert fits[0].needed == sum(apart.critic.values()) and fits[0].place == "each rank of the critic"
    assert "--critic-num-gpus-per-node" in warnings[0] and "--actor-num-gpus-per-node" not in warnings[0]


def test_a_larger_gpu_is_never_worse_and_exactly_enough_is_enough(planned):
    needed = planned()[1][0].needed
    enough = [planned(Machine(GIB, size, None, "nvidia-smi"))[1][0].is_enough for size in (1, needed - 1, needed, needed + 1)]
    assert enough == [False, False, True, True]


def test_on_a_cpu_all_processes_share_the_machine(planned):
    memory, (fit,), warnings = planned(Machine(8 * GIB), device="cpu", actor_num_gpus_per_node="2", rollout_num_gpus="3")
    assert fit.needed == 2 * sum(memory.policy.values()) + 3 * sum(memory.engine.values())
    assert fit.place == "2 trainer ranks and 3 engines"
    assert "--actor-num-gpus-per-node" not in warnings[0]
    ppo = {"advantage_estimator": "ppo", "critic_num_gpus_per_node": "2"}
    apart, (with_critic,), _ = planned(Machine(8 * GIB), device="cpu", actor_num_gpus_per_node="2", rollout_num_gpus="3", **ppo)
    assert with_critic.needed == fit.needed + 2 * sum(apart.critic.values())
    assert with_critic.place == "2 trainer ranks, 2 critic ranks and 3 engines"


def test_masters_in_host_memory_are_held_against_it(planned):
    memory, fits, _ = planned(Machine(GIB, 140 * GIB, 8, "nvidia-smi"), optimizer_cpu_offload=True, actor_num_gpus_per_node="2")
    assert fits[-1].needed == 2 * sum(memory.host.values())
    assert not fits[-1].is_enough
    ppo = {"advantage_estimator": "ppo", "critic_num_gpus_per_node": "3"}
    memory, fits, _ = planned(Machine(GIB, 140 * GIB, 8, "nvidia-smi"), optimizer_cpu_offload=True, **ppo)
    assert fits[-1].needed == sum(memory.host.values()) + 3 * sum(memory.critic_host.values())


def test_too_few_gpus_are_told_unless_a_cluster_is_joined(bench):
    two = Machine(64 * GIB, 400 * GIB, 2, "nvidia-smi")
    flags = {"actor_num_gpus_per_node": "2", "rollout_num_gpus": "2", "device": "cuda"}
    with a_machine_with(has_cuda=True, has_sglang=True):
        alone, joined = bench.resolve("train", flags), bench.resolve("train", flags | {"ray_address": "auto"})
    assert shortage(alone, two).startswith("the run needs 4 GPU (this machine has 2). Lower ")
    assert shortage(joined, two) == shortage(alone, STATED) == shortage(alone, replace(two, num_gpus=4)) == ""
    assert shortage(bench.resolve("train", flags | {"device": "cpu"}), two) == ""
    with a_machine_with(has_cuda=True, has_sglang=True):
        apart = bench.resolve("train", flags | {"advantage_estimator": "ppo", "critic_num_gpus_per_node": "1"})
    assert shortage(apart, replace(two, num_gpus=4)).startswith("the run needs 5 GPU (this machine has 4). Lower --critic-num-")


def test_a_cluster_s_machines_are_not_known_unless_stated(planned):
    assert planned(Machine(64 * GIB, 400 * GIB, 2, "nvidia-smi"), ray_address="auto")[1:] == ((), [])
    assert len(planned(STATED, ray_address="auto")[1]) == 2


def test_a_machine_is_its_smallest_gpu_or_what_is_stated():
    gpus = [Gpu("a", 80 * GIB, 1), Gpu("b", 40 * GIB, 1)]
    assert machine_of(gpus, 1, None) == Machine(1, 40 * GIB, 2, "nvidia-smi")
    assert machine_of(gpus, 1, 141) == Machine(1, 141 * GIB, None, "--gpu-memory-gib")
    assert machine_of(None, 1, None) == machine_of([], 1, None) == Machine(1)


def test_what_nvidia_smi_says_is_read(tmp_path):
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 143000'\necho 'NVIDIA A, B, 40960, 4'\n")
    script.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        first, second = Gpu("NVIDIA H200", 143771 * 2**20, 143000 * 2**20), Gpu("NVIDIA A, B", 40960 * 2**20, 4 * 2**20)
        assert find_gpus({}) == [first, second]
        assert find_gpus({"CUDA_VISIBLE_DEVICES": "1"}) == [second]
        assert find_gpus({"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}) == [first, second]
        assert find_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
        script.write_text("#!/bin/sh\nexit 9\n")
        assert find_gpus({}) is None


def test_a_container_has_what_it_is_allowed(tmp_path):
    limit = tmp_path / "memory.max"
    whole = host_memory(limit)
    assert whole > 0
    limit.write_text("max\n")
    assert host_memory(limit) == whole
    limit.write_text("1048576\n")
    assert host_memory(limit) == 2**20


def test_a_plan_for_gpus_elsewhere(bench, monkeypatch):
    from typer.testing import CliRunner

    monkeypatch.chdir(bench.folder)
    words = ["train", "--preset", "reverse", "--device", "cuda", "--gpu-memory-gib", "0.5"]
    assert "error: --gpu-memory-gib: must be " in CliRunner().invoke(app, [*words, "--dry-run"]).stderr
    words[-1] = "141"
    assert "--gpu-memory-gib): counts only with --dry-run" in CliRunner().invoke(app, words).stderr
    shown = CliRunner().invoke(app, [*words, "--dry-run"]).stdout
    assert "warning: GPUs of 141 GiB are taken for granted (--gpu-memory-gib), whatever is here" in shown
    assert "fits: each trainer rank, 93.3 MiB of the 141.0 GiB of a GPU (--gpu-memory-gib)" in shown
    data = json.loads(CliRunner().invoke(app, [*words, "--dry-run", "--json"]).stdout)
    assert [fit["is_enough"] for fit in data["plan"]["fits"]] == [True, True]
