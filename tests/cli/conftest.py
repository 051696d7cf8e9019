"""The command line in this process: what it prints, what was typed as the resolver would get it, and a run to speak of."""

import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from miles.config.records import RECORD_FILE
from miles.config.sources import FlagValue
from miles.tracking.run_folder import RunFolder, RunState, write_state
from miles_cli.app import app

CONFIGURED = shlex.split("config show train-async --preset reverse --fully-async --num-rollout 3")
Typist = Callable[[list[str]], Mapping[str, FlagValue]]


def miles(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.fixture(autouse=True)
def _quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working directory without variables."""
    for name in [name for name in os.environ if name.startswith("MILES_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def typist(monkeypatch: pytest.MonkeyPatch) -> Typist:
    """Runs ``miles`` with the words; returns the flags that reach the resolver."""
    from miles_cli import training

    seen: list[Any] = []

    def catch(command: str, typed: Any, preset: Any, config: Any, asked: Any) -> int:
        seen.append(typed.flags)
        return 0

    monkeypatch.setattr(training, "train_command", catch)

    def type_words(words: list[str]) -> Mapping[str, FlagValue]:
        seen.clear()
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        return seen[0]

    return type_words


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a run that was stopped after two rollouts of three."""
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(tmp_path / "runs" / "one", tmp_path / "runs" / "one" / "checkpoints")
    folder.checkpoint_for(1).mkdir(parents=True)
    write_state(folder.checkpoint_for(1), RunState(2, 2))
    (folder.path / "config.toml").write_text(miles(*CONFIGURED, "--format", "toml"))
    (folder.path / RECORD_FILE).write_text(miles(*CONFIGURED, "--format", "json"))
    row = {"rollout_id": 1, "perf/step_time": 0.5, "rollout/raw_reward": 0.75, "eval/reverse": 0.5, "train/loss": None}
    (folder.path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path
