"""What must be refused for what files hold or the machine lacks: models, prompts, secrets, drivers, packages."""

import pytest

from miles.config import resolve as resolving
from miles.config.facts import Facts
from miles.config.resolve import resolve
from tests.config.support import flag, refuse

pytestmark = pytest.mark.unit
FULLY = {"fully_async": True}


def test_empty_and_broken_inputs_are_named(bench, tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n \n")
    (tmp_path / "config.json").write_text("{")
    flags = {"prompt_data": str(tmp_path / "empty.jsonl"), "hf_checkpoint": str(tmp_path)}
    problems = refuse(bench, "train", flags)
    assert [problem.option for problem in problems] == ["hf_checkpoint", "prompt_data"]
    assert "cannot be read" in problems[0].why
    assert "is empty" in problems[1].why


def test_the_first_prompt_is_looked_at(bench, tmp_path):
    (tmp_path / "list.txt").write_text("a\n")
    (problem,) = refuse(bench, "train", {"prompt_data": str(tmp_path / "list.txt")})
    assert "line 1 is no JSON object" in problem.why
    (tmp_path / "other.jsonl").write_text('\n{"question": "a"}\n')
    (problem,) = refuse(bench, "train", {"prompt_data": str(tmp_path / "other.jsonl")})
    assert (problem.option, problem.why) == ("input_key", "is no key of line 2 of other.jsonl, which has question")


def test_a_model_without_a_limit_needs_one(bench, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (problem,) = refuse(bench, "train", {"hf_checkpoint": str(tmp_path)})
    assert str(problem).startswith("rollout_max_context_len: is not set, and the model's config.json names no limit")
    flags = {"hf_checkpoint": str(tmp_path), "rollout_max_context_len": "64"}
    assert resolve("train", bench.sources(flags, bare=True, preset="reverse")).derived.max_prompt_len == 56


def test_secrets_are_never_shown(bench):
    problems = refuse(bench, "train", {"wandb_key": "hush", "fully_async": True})
    assert "hush" not in "".join(map(str, problems))
    found = bench.examine("train", files=['wandb_key = "hush"'], env={"MILES_WANDB_KEY": "hush"})
    assert "hush" not in repr(found.rows) + repr(found.problems)
    assert flag("wandb_key", "x").text == "--wandb-key"


def test_cuda_is_asked_for_only_where_there_is_a_driver(bench, monkeypatch):
    found = {"has_cuda": False, "has_sglang": False}
    monkeypatch.setattr(resolving, "read_facts", lambda *_: Facts(10, 256, **found))
    (problem,) = refuse(bench, "train", {"device": "cuda"})
    assert "needs an NVIDIA driver" in problem.why
    found["has_cuda"] = True
    (problem,) = refuse(bench, "train", {"device": "auto"})
    assert problem.option == "engine"
    assert "sglang on cuda" in problem.why
    assert "miles[sglang]" in problem.remedy
    sources = bench.sources({"device": "auto", "engine": "embedded"}, bare=True, preset="reverse")
    assert resolve("train", sources).derived.device == "cuda"
    sources = bench.sources({"device": "auto"}, bare=True, preset="reverse")
    found["has_sglang"] = True
    assert resolve("train", sources).derived.engine == "sglang"


def test_sglang_is_asked_for_only_where_it_is_installed(bench, monkeypatch):
    found = {"has_sglang": False}
    monkeypatch.setattr(resolving, "read_facts", lambda *_: Facts(10, 256, has_cuda=False, **found))
    (problem,) = refuse(bench, "train", {"engine": "sglang"})
    assert problem.option == "engine"
    assert "not installed" in problem.why
    assert "requirements/sglang-cpu.txt" in problem.remedy
    found["has_sglang"] = True
    sources = bench.sources({"engine": "sglang"}, bare=True, preset="reverse")
    assert resolve("train", sources).derived.engine == "sglang"


@pytest.mark.parametrize(("flags", "option", "words"), [
    ({"router_policy": "manual"}, "router_policy", "there is one engine"),
    ({"router_policy": "manual", "colocate": True}, "router_policy", "there is one engine"),
    ({"router": "cache-threshold 0.5"}, "router", "no router is started"),
    ({"router_policy": "manual", "rollout_num_gpus": "2", "router": "policy random"}, "router", "belongs to miles"),
])  # fmt: skip
def test_a_router_that_is_not_started_is_not_configured(bench, flags, option, words):
    (problem,) = refuse(bench, "train", {name: text if name != "router" else [text.split()] for name, text in flags.items()})
    assert problem.option == option
    assert words in problem.why


def test_a_router_stands_before_several_sglang_engines_where_it_is_installed(bench, monkeypatch):
    found = {"has_sglang": True, "has_router": True}
    monkeypatch.setattr(resolving, "read_facts", lambda *_: Facts(10, 256, has_cuda=False, **found))

    def policy(**flags):
        return resolve("train", bench.sources(flags, bare=True, preset="reverse")).derived.router_policy

    assert policy(engine="sglang", rollout_num_gpus="2") == "manual"
    assert policy(engine="sglang") == policy(rollout_num_gpus="2") == "none"
    assert policy(engine="sglang", rollout_num_gpus="2", router_policy="none") == "none"
    assert policy(rollout_num_gpus="2", router_policy="random") == "random"
    found["has_router"] = False
    assert policy(engine="sglang", rollout_num_gpus="2") == "none"
    (problem,) = refuse(bench, "train", {"rollout_num_gpus": "2", "router_policy": "random"})
    assert "sglang-router, which is not installed" in problem.why


def test_rows_stand_end_to_end_where_a_kernel_computes_segments(bench, monkeypatch):
    found = {"has_cuda": True, "has_varlen": True}
    monkeypatch.setattr(resolving, "read_facts", lambda *_: Facts(10, 256, has_sglang=True, **found))

    def packing(command="train", preset="reverse", **flags):
        resolution = bench.examine(command, flags | {"device": flags.get("device", "auto")}, bare=True, preset=preset)
        row = next(row for row in resolution.rows if row.option == "packing")
        assert row.value == resolution.derived.packing
        return row.value, row.origin

    assert packing(dtype="bfloat16") == ("varlen", "auto: torch's kernel for segments computes no padding")
    assert packing("sft", "reverse-sft", dtype="bfloat16")[0] == "varlen"
    assert packing() == ("block-mask", "auto: torch's kernel for segments has no float32")
    assert packing(dtype="bfloat16", packing="block-mask")[0] == "block-mask"
    assert packing(device="cpu", packing="varlen")[0] == "varlen"
    assert packing(device="cpu")[1].startswith("auto: on a CPU segments are computed one by one")
    (problem,) = refuse(bench, "train", {"device": "cuda", "packing": "varlen"})
    assert (problem.option, problem.remedy) == ("packing", "Pass --dtype bfloat16, or --packing block-mask")
    found["has_varlen"] = False
    assert packing(dtype="bfloat16") == ("block-mask", "auto: this torch has no kernel for segments")
    (problem,) = refuse(bench, "train", {"device": "cuda", "packing": "varlen", "dtype": "bfloat16"})
    assert "needs torch 2.13 or newer" in problem.why
