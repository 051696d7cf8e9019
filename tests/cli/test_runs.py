"""``miles runs …``: what it prints about run folders, and what Tab knows of them."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from miles.config.records import RECORD_FILE
from miles.tracking.last_start import note_end, note_start
from tests.cli.conftest import miles

pytestmark = pytest.mark.cli


def test_the_list(home: Path) -> None:
    head, line = miles("runs", "list").splitlines()
    assert re.split(r" {2,}", head) == ["run", "state", "schedule", "rollouts", "reward", "evaluation", "written"]
    cells = re.split(r" {2,}", line)
    assert cells[:-1] == ["runs/one", "stopped", "fully-async", "2 of 3", "0.750", "reverse 0.500"]
    assert miles("runs", "list", "runs").splitlines()[1].startswith("runs/one")
    assert miles("runs", "list", ".").startswith("no runs in .")
    assert "there is no such folder" in miles("runs", "list", "gone", code=2)


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(home: Path) -> None:
    (home / "runs" / "one" / RECORD_FILE).write_text("{")
    assert "runs/one  unreadable  run folder = runs/one: has a config.json" in miles("runs", "list").splitlines()[1]
    (data,) = json.loads(miles("runs", "list", "--json"))
    assert (data["state"], "cannot be read" in data["why"]) == ("unreadable", True)


def test_one_run(home: Path) -> None:
    start = note_start(home / "runs" / "one")
    assert miles("runs", "show", "runs/one").startswith(f"runs/one: running since {start.started}, process {start.pid} on ")
    note_end(home / "runs" / "one", start, 1, "engine 0 died")
    lines = miles("runs", "show", "runs/one").splitlines()
    assert re.fullmatch(r"runs/one: failed \S+, exit code 1", lines[0])
    facts = dict(re.split(r" {2,}", line.strip(), maxsplit=1) for line in lines[2 : lines.index("", 2)])
    assert facts["command"].startswith("miles train-async · fully async")
    assert (facts["rollouts"], facts["why"], facts["reward"], facts["eval/reverse"]) == (
        "2 of 3", "engine 0 died", "0.75", "0.500 → 0.500",
    )  # fmt: skip
    assert facts["checkpoints"] == "after 2 rollouts: runs/one/checkpoints/rollout-000001  (latest)"
    assert "loss" not in facts
    assert "there is no such folder" in miles("runs", "show", "runs/two", code=2)


def test_the_command_that_goes_on_resolves_to_the_same_run(home: Path) -> None:
    command = json.loads(miles("runs", "show", "runs/one", "--json"))["go_on"]["go on"]
    words = shlex.split(command)
    assert words == ["miles", "train-async", "--config", "runs/one/config.toml", "--run-dir", "runs/one"]
    assert "resumes after rollout 1" in miles(*words[1:], "--dry-run")


def test_what_is_done_can_be_trained_further(home: Path) -> None:
    row = {"rollout_id": 2, "perf/step_time": 0.5}
    with (home / "runs" / "one" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    lines = miles("runs", "show", "runs/one").splitlines()
    assert lines[0] == "runs/one: done"
    assert "miles train-async --config runs/one/config.toml --run-dir runs/one --num-rollout N" in lines


def test_a_run_of_fine_tuning_counts_steps(home: Path) -> None:
    folder = home / "runs" / "tuned"
    folder.mkdir()
    words = shlex.split("config show sft --preset reverse-sft --train-iters 2 --lr-warmup-iters 0")
    (folder / "config.toml").write_text(miles(*words, "--format", "toml"))
    (folder / RECORD_FILE).write_text(miles(*words, "--format", "json"))
    (folder / "metrics.jsonl").write_text('{"rollout_id": 1, "perf/step_time": 0.5, "train/loss": 0.25}\n')
    lines = miles("runs", "show", "runs/tuned").splitlines()
    assert lines[0] == "runs/tuned: done"
    assert any(line.split() == ["steps", "2", "of", "2"] for line in lines)
    assert "miles sft --config runs/tuned/config.toml --run-dir runs/tuned --train-iters N" in lines


def test_nothing_heavy_is_imported(home: Path) -> None:
    code = """
import sys
from typer.testing import CliRunner
from miles_cli.app import app
print(CliRunner().invoke(app, sys.argv[1:]).exit_code)
print([name for name in ("torch", "ray", "transformers", "sglang") if name in sys.modules])
"""
    for words in (("runs", "list"), ("runs", "show", "runs/one"), ("metrics", "explain", "ess", "runs/one")):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.split("\n") == ["0", "[]", ""]
