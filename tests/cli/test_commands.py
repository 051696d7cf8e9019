"""The commands from outside: what they print, where, and with which exit code."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from miles.errors import EngineError, MachineError, MilesError
from miles_cli.app import app

pytestmark = pytest.mark.cli


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MILES_")]:
        monkeypatch.delenv(name)


def miles(*words: str, code: int = 0, env: dict[str, str] | None = None) -> Any:
    result = CliRunner().invoke(app, list(words), env=env)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ``start_run`` was called with; it returns 7, or raises what ``runs.error`` holds."""
    calls: list[Any] = []
    stand_in = ModuleType("miles.loops.start")

    def start_run(resolution: Any, reporter: Any) -> int:
        calls.append(resolution)
        return 7

    stand_in.start_run = start_run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "miles.loops.start", stand_in)
    return calls


def test_train_resolves_prints_and_runs(runs: list[Any]) -> None:
    out = miles("train-async", "--fully-async", "--preset", "reverse", "--lr", "0.5", code=7).stdout
    assert out.splitlines()[0] == (
        "miles train-async · fully async: a producer keeps the engines full, the policy drains a buffer; "
        "staleness at most 4 weight versions"
    )
    assert "lr = 0.5  # --lr · over preset reverse (0.0002)" in out.splitlines()
    assert [call.config.optimizer.lr for call in runs] == [0.5]


def test_a_dry_run_prints_the_plan_and_starts_nothing(runs: list[Any]) -> None:
    out = miles("train", "--preset", "reverse", "--dry-run").stdout
    assert runs == []
    assert "num_rollout = 150  # preset reverse" in out
    assert "nothing was started" in out.splitlines()[-1]


@pytest.mark.parametrize("error", [EngineError("engine 0 died"), MachineError("no room"), MilesError("odd")])
def test_an_error_of_the_run_is_a_sentence_with_its_exit_code(error: MilesError, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = ModuleType("miles.loops.start")

    def start_run(resolution: Any, reporter: Any) -> int:
        raise error

    stand_in.start_run = start_run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "miles.loops.start", stand_in)
    result = miles("train", "--preset", "reverse", code=error.exit_code)
    assert result.stderr == f"error: {error}\n"


def test_errors_go_to_stderr_all_at_once_and_nothing_runs(runs: list[Any]) -> None:
    result = miles("train", "--preset", "reverse", "--lr", "nan", "--rollout-temperature", "0", "--fully", code=2)
    assert result.stdout == ""
    assert result.stderr.splitlines()[0] == "error: 3 problems"
    for words in ("--fully-async", "lr = nan", "rollout_temperature = 0"):
        assert words in result.stderr
    assert runs == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "--fully-async"), "miles train-async --fully-async"),
        (("train-async", "--colocate"), "miles train --colocate"),
        (("train", "--max-weight-staleness", "2"), "miles train-async"),
    ],
)
def test_an_option_of_the_other_command_is_refused_with_that_command(words: tuple[str, ...], said: str) -> None:
    assert said in miles(*words, code=2).stderr
    assert said in miles("config", "show", *words, code=2).stderr


def test_bare_show_needs_nothing() -> None:
    out = miles("config", "show").stdout
    assert "preset      none" in out
    assert "hf_checkpoint = (needed)" in out.splitlines()
    assert "rollout_batch_size = 32  # default" in out.splitlines()
    assert "needed before it can run:" in out
    assert "  prompt_data: is missing" in out.splitlines()


def test_bare_show_says_what_it_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("lr = 0.25\n")
    out = miles("config", "show", "--preset", "reverse", "--config", str(file), env={"MILES_SEED": "5"}).stdout
    assert "  preset      reverse" in out.splitlines()
    assert "learns to reverse strings" in out
    assert f"  files       {file}" in out.splitlines()
    assert "  variables   MILES_SEED" in out.splitlines()
    assert "seed = 5  # $MILES_SEED" in out.splitlines()
    assert any(line.startswith("lr = 0.25  # ") and "run.toml:1 · over preset reverse" in line for line in out.splitlines())


def test_bare_show_refuses_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("lerning_rate = 1\n")
    assert "lerning_rate" in miles("config", "show", "--config", str(file), code=2).stderr


def test_show_without_a_command_says_where_options_go() -> None:
    assert "miles config show train --lr" in miles("config", "show", "--lr", "1", code=2).stderr


def test_json_holds_values_chains_and_what_is_needed() -> None:
    data = json.loads(miles("config", "show", "train", "--preset", "reverse", "--lr", "0.5", "--format", "json").stdout)
    assert data["schedule"] == "sync"
    assert data["values"]["lr"]["chain"][0] == {"origin": "--lr", "value": "0.5", "layer": "flag", "table": ""}
    assert data["values"]["global_batch_size"]["derived"]
    assert data["needed"] == []
    bare = json.loads(miles("config", "show", "--format", "json").stdout)
    assert {"hf_checkpoint", "prompt_data"} <= {item["option"] for item in bare["needed"]}


def test_toml_is_a_file_that_gives_the_same_again(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    words = ("train-async", "--preset", "reverse", "--fully-async", "--lr", "0.5")
    file.write_text(miles("config", "show", *words, "--format", "toml").stdout)
    first, again = (
        json.loads(miles("config", "show", "train-async", *given, "--format", "json").stdout)
        for given in (words[1:], ("--config", str(file)))
    )
    assert {k: v["value"] for k, v in again["values"].items()} == {k: v["value"] for k, v in first["values"].items()}
    assert "prompt_data" in miles("config", "show", "--format", "toml", code=2).stderr


def test_a_format_that_nobody_has_is_refused() -> None:
    assert "--format" in miles("config", "show", "train", "--format", "xml", code=2).stderr


def test_show_imports_no_user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    miles("config", "show", "train", "--preset", "reverse", "--custom-generate-function-path", "mine:fn")
    assert "mine" not in sys.modules


def test_a_secret_is_not_shown() -> None:
    result = CliRunner().invoke(app, ["config", "show", "train", "--preset", "reverse", "--wandb-key", "s3cr3t"])
    assert "s3cr3t" not in result.output


def test_the_reference_pages_are_up_to_date() -> None:
    from miles_cli.references import PAGES

    for path, text in PAGES.items():
        assert path.read_text() == text(), f"{path}: run python -m miles_cli.references"


def test_an_unknown_flag_without_a_value_is_no_option_that_is_merely_missing() -> None:
    result = CliRunner().invoke(app, ["config", "show", "train", "--preset", "reverse", "--nope"])
    assert result.exit_code == 2
    assert "--nope (command line): there is no such option" in result.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("simulate --steps abc", "--steps: must be a valid integer"),
        ("simulate --engines 0", "--engines: must be greater than or equal to 1"),
        ("export", "RUN is missing"),
        ("config diff reverse", "B is missing"),
        ("config explain", "KEY is missing"),
        ("runs list a b", "unexpected extra argument"),
    ],
)
def test_what_the_parser_refuses_names_the_option_or_argument(line: str, said: str) -> None:
    result = CliRunner().invoke(app, line.split(), prog_name="miles")
    assert result.exit_code == 2
    assert said in result.stderr
    assert "See `miles " in result.stderr
