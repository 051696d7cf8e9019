"""The answers at the widths people use, with colour, without it, and piped: within the width, and whole."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from miles_cli.app import app

pytestmark = pytest.mark.cli
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ANSWERS = [
    ("config", "show", "train", "--config", "a.toml"),
    ("config", "show", "train", "--config", "a.toml", "--changed"),
    ("config", "show", "--config", "a.toml"),
    ("config", "explain", "off_policy_correction"),
    ("config", "search", "staleness"),
    ("config", "diff", "a.toml", "b.toml", "--exit-zero"),
]
LONG = "path/" + "of/a/very/long/name/" * 8 + "end"
TERMINALS = {"colour": {"FORCE_COLOR": "1"}, "no colour": {"FORCE_COLOR": "1", "NO_COLOR": "1"}}


@pytest.fixture(autouse=True)
def _place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("MILES_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text(f'save = "{LONG}"\nlr = 3e-5\n')
    Path("b.toml").write_text("lr = 1e-5\n")


def shown(words: tuple[str, ...], **env: str) -> Any:
    result = CliRunner().invoke(app, list(words), env=env)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("terminal", TERMINALS)
@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
def test_a_terminal_shows_everything_within_its_width(words: tuple[str, ...], width: int, terminal: str) -> None:
    text = shown(words, COLUMNS=str(width), **TERMINALS[terminal])
    assert ("\x1b[3" in text) <= (terminal == "colour")
    plain = COLOUR.sub("", text)
    assert max(len(line) for line in plain.splitlines()) <= width
    if "show" not in words:  # a table is shown by columns, see below
        assert "".join(plain.split()) == "".join(shown(words).split())


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_pipe_keeps_every_value_in_one_line(width: int) -> None:
    lines = shown(ANSWERS[0], COLUMNS=str(width)).splitlines()
    data = json.loads(shown((*ANSWERS[0], "--format", "json")))
    for name, entry in data["values"].items():
        value = entry["value"] or ("(needed)" if not entry["chain"] else '""')
        assert any(line.startswith(f"{name} = {value}") for line in lines), name
    assert not any("\x1b" in line for line in lines)
    assert LONG in shown(ANSWERS[5], COLUMNS=str(width))


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_table_folds_a_long_value_and_keeps_each_letter(width: int) -> None:
    text = COLOUR.sub("", shown((*ANSWERS[1], "--format", "table"), COLUMNS=str(width)))
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("│   save "))
    column = lines[first].index("/") - len(lines[first][: lines[first].index("/")].split(" ")[-1])
    pieces = []
    for line in lines[first:]:
        if pieces and not line.startswith("│" + " " * 8):
            break
        pieces.append(line[column:].split("  ")[0].rstrip("│ "))
    assert "".join(pieces).endswith(LONG)
