"""The dry run: what would happen, and the user's code held against its calls, with nothing started."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles.config.fit import Machine
from miles.config.memory import GIB
from miles.config.plan import make_plan
from miles.config.presets import PRESETS
from miles.config.resolve import resolve
from miles.config.sources import FlagValue, Sources
from miles.config.work import points
from miles.errors import ConfigError
from miles.loops.parts import Cadence
from tests.config.support import VARIANTS

pytestmark = pytest.mark.unit
MACHINE = Machine(64 * GIB)


def plan_of(bench, variant, **flags):
    command, selectors = VARIANTS[variant]
    return make_plan(bench.resolve(command, selectors | flags), MACHINE)


@pytest.mark.parametrize(
    ("variant", "flags", "words"),
    [
        ("sync", {}, ["staleness 0", "the policy waits for rollout k"]),
        ("one_step_off", {"update_weights_interval": "2"}, ["staleness at most 1 weight version", "after every 2 rollouts"]),
        ("fully_async", {"max_weight_staleness": "3"}, ["staleness at most 3 weight versions", "held by `pace`"]),
        ("sync", {"num_steps_per_rollout": "4"}, ["4 optimiser steps on each rollout", "3 updates away"]),
    ],
)
def test_the_schedule_in_words(bench, variant, flags, words):
    text = "\n".join(plan_of(bench, variant, **flags).schedule)
    for word in words:
        assert word in text


def test_everyone_has_a_seat(bench):
    plan = plan_of(bench, "sync", rollout_num_gpus="3")
    assert [(seat.name, seat.device) for seat in plan.seats] == [
        ("rank 0", "a CPU process"),
        ("engine 0", "a CPU process, embedded"),
        ("engine 1", "a CPU process, embedded"),
        ("engine 2", "a CPU process, embedded"),
    ]


def test_engines_of_others_are_named_and_take_no_memory_here():
    folder = str(PRESETS / "reverse")
    sources = Sources({"rollout_external_engine_addrs": FlagValue(("10.0.0.1:30000",), "x")}, preset="reverse", cwd=Path(folder))
    plan = make_plan(resolve("train", sources), MACHINE)
    assert plan.sections()[1].lines == ("node 0  [CPU rank 0]", "external engine 10.0.0.1:30000")
    assert plan.data()["external_engines"] == ["10.0.0.1:30000"]
    assert not any("engine device" in line for line in plan.lines())


def test_the_amount_of_work(bench):
    text = "\n".join(plan_of(bench, "sync", global_batch_size="64").work)
    assert "32 groups × 8 samples = 256 samples" in text
    assert "each optimiser step: 64 samples; 4 per rollout" in text
    assert "stops after 10 rollouts (num_rollout = 10): 40 optimiser steps" in text
    assert "320 groups over 10 prompts, 32 passes" in text
    by_epoch = "\n".join(plan_of(bench, "sync", num_rollout=..., num_epoch="7").work)
    assert "stops after 3 rollouts (num_epoch = 7)" in by_epoch


def test_when_it_evaluates_and_saves(bench):
    assert plan_of(bench, "sync").points[0] == "no evaluation: there is no --eval-prompt-data"
    data = (("held", "heldout.jsonl"),)
    plan = plan_of(bench, "sync", eval_prompt_data=data, eval_interval="4", save_interval="100")
    assert plan.points == (
        "evaluates held 4 times: before the first rollout, after 4, 8, 10",
        "the rollout's engines evaluate; production pauses, what is in flight goes on",
        "saves a checkpoint once: after 10",
    )
    skipping = plan_of(bench, "sync", eval_prompt_data=data, skip_eval_before_train=True)
    assert skipping.points[0] == "evaluates held once: after 10"
    often = plan_of(bench, "sync", save_interval="1", num_rollout="20")
    assert often.points[1] == "saves a checkpoint 20 times: after 1, 2, 3, …, 19, 20"


@given(total=st.integers(1, 200), interval=st.none() | st.integers(1, 250))
def test_points_are_those_of_the_loop(total, interval):
    cadence = Cadence(total=total, update_weights_interval=1, eval_interval=interval, save_interval=interval)
    assert list(points(interval, total)) == [done for done in range(1, total + 1) if cadence.saves_after(done)]


def test_amounts_for_programs(bench):
    plan = plan_of(bench, "sync", global_batch_size="64")
    data = json.loads(json.dumps(plan.data(), default=str))
    assert data["work"] | {"evaluations": [], "saves": [10]} == {
        "rollouts": 10, "groups": 320, "samples": 2560, "optimizer_steps": 40, "answer_tokens": 2560 * 1024,
        "prompt_tokens": 320 * 3072, "evaluations": [], "saves": [10],
    }  # fmt: skip
    assert [seat["name"] for seat in data["seats"]] == ["rank 0", "engine 0"]
    assert data["memory_bytes"] is None
    assert "no estimate: the model's config.json does not tell its size" in "\n".join(plan.lines())


def test_lines_hold_every_section(bench):
    plan = plan_of(bench, "sync", run_dir="here")
    lines = plan.lines()
    for section in plan.sections():
        assert section.heading in lines
        for line in section.lines:
            assert f"  {line}" in lines
    assert any(f"run folder: {bench.folder / 'here'}, resumed if it holds a run" in line for line in lines)


@pytest.fixture
def user_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "made_code.py").write_text(
        "def reward(sample, prompt, *, strict=False): ...\n"
        "def too_few(sample): ...\n"
        "def plain(engine, prompt, sampling, rid): ...\n"
        "async def generate(engine, prompt, sampling, rid): ...\n"
        "class Rollout:\n    def __init__(self, given): ...\n    def __call__(self): ...\n"
        "    published = pause = resume = close = __call__\n"
        "number = 3\n"
    )
    yield
    sys.modules.pop("made_code", None)


def test_user_code_is_imported_and_shown(bench, user_code):
    plan = plan_of(
        bench, "sync", rm_type=..., custom_rm_path="made_code:reward", rollout_function_path="made_code.Rollout",
        custom_generate_function_path="made_code:generate",
    )  # fmt: skip
    assert [(code.option, code.signature) for code in plan.user_code] == [
        ("custom_rm_path", "(sample, prompt, *, strict=False)"),
        ("custom_generate_function_path", "(engine, prompt, sampling, rid)"),
        ("rollout_function_path", "(given)"),
    ]


def test_user_code_that_does_not_fit_is_refused_all_at_once(bench, user_code):
    flags = {"custom_rm_path": "made_code:too_few", "custom_generate_function_path": "made_code:plain"}
    with pytest.raises(ConfigError) as caught:
        plan_of(
            bench, "sync", rm_type=..., **flags, rollout_function_path="made_code:number", dynamic_sampling_filter_path="gone:x"
        )
    said = {problem.option: str(problem) for problem in caught.value.problems}
    assert "takes (sample), but is called with (sample, prompt)" in said["custom_rm_path"]
    assert "= made_code:plain (--custom-generate-function-path): is not async" in said["custom_generate_function_path"]
    assert "is no function or class but of type int" in said["rollout_function_path"]
    assert "there is no module gone" in said["dynamic_sampling_filter_path"]


def test_user_code_is_judged_together_with_the_options(bench, user_code):
    flags = {"rm_type": ..., "custom_rm_path": "made_code:too_few", "lr": "nan", "dynamic_sampling_filter_path": "gone:x"}
    with pytest.raises(ConfigError) as caught:
        resolve("train", bench.sources(flags), code_too=True)
    assert [problem.option for problem in caught.value.problems] == ["custom_rm_path", "dynamic_sampling_filter_path", "lr"]
    with pytest.raises(ConfigError) as caught:
        bench.resolve("train", flags)
    assert [problem.option for problem in caught.value.problems] == ["lr"]


def test_a_dry_run_imports_nothing_heavy():
    code = """
import sys
from miles.config.resolve import resolve
from miles.config.plan import make_plan
from miles.config.toml_out import config_toml
from miles.config.devices import find_gpus, host_memory
from miles.config.fit import machine_of
from miles.config.sources import FlagValue, Sources
resolution = resolve("train-async", Sources({"fully_async": FlagValue(True, "--fully-async")}, preset="reverse"))
make_plan(resolution, machine_of(find_gpus({}), host_memory(), None)).lines(), config_toml(resolution)
print([name for name in ("torch", "ray", "transformers", "sglang", "aiohttp", "rich", "typer") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
