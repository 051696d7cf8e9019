"""What was typed, as the resolver would get it."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from miles.config.sources import FlagValue

Typist = Callable[[list[str]], Mapping[str, FlagValue]]


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
    from miles_cli.app import app

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
