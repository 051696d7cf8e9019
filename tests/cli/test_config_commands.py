"""``miles config …`` from outside: what each command says, in which form, and with which exit code."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from miles.config.records import RECORD_FILE
from miles.config.registry import Option, all_options
from miles_cli.app import app

pytestmark = [pytest.mark.cli, pytest.mark.usefixtures("place")]


def miles(*words: str, code: int = 0, env: dict[str, str] | None = None) -> Any:
    result = CliRunner().invoke(app, list(words), env=env)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


CHAIN = "--lr · over --lr (2) · over $MILES_LR (3) · over run.toml:2 (0.4) · over site.toml:1 (0.5) · over miles.toml:1 (0.6)"
WORDS = ("train", "--preset", "reverse", "--config", "run.toml", "--lr", "2", "--lr", "1")


@pytest.fixture
def layered(place: Path) -> dict[str, str]:
    """Files in every layer; the environment to go with them."""
    (place / "miles.toml").write_text("lr = 0.6\n")
    (place / "site.toml").write_text("lr = 0.5\n")
    (place / "run.toml").write_text("\nlr = 0.4\n")
    return {"MILES_CONFIG": "site.toml", "MILES_LR": "3"}


def test_every_form_tells_the_same_chain(layered: dict[str, str], place: Path) -> None:
    whole = f"{CHAIN} · over preset reverse (0.0002)"
    plain = miles("config", "show", *WORDS, env=layered).stdout
    assert f"lr = 1.0  # {whole}" in plain.splitlines()
    table = miles("config", "show", *WORDS, "--format", "table", env=layered | {"COLUMNS": "300"}).stdout
    assert whole in table
    data = json.loads(miles("config", "show", *WORDS, "--format", "json", env=layered).stdout)
    assert data["values"]["lr"]["origin"] == whole
    assert f"lr = 1.0  # {whole}" in miles("config", "show", *WORDS, "--format", "toml", env=layered).stdout.splitlines()
    (place / "run").mkdir()
    (place / "run" / RECORD_FILE).write_text(json.dumps(data))
    assert f"lr = 1.0  # {whole}" in miles("config", "show", "run").stdout.splitlines()
    explained = miles("config", "explain", "lr", "--preset", "reverse", "--config", "run.toml", env=layered).stdout
    assert "$MILES_LR · over run.toml:2 (0.4) · over site.toml:1 (0.5)" in explained


def test_files_that_count_without_being_named_are_named(layered: dict[str, str]) -> None:
    for words in (("config", "show", *WORDS), (*WORDS, "--dry-run")):
        lines = miles(*words, env=layered).stdout.splitlines()
        assert lines[:2] == ["also read: miles.toml (working directory)", "also read: site.toml ($MILES_CONFIG)"]
    data = json.loads(miles("config", "show", *WORDS, "--format", "json", env=layered).stdout)
    assert [file["path"] for file in data["files"]] == ["miles.toml", "site.toml", "run.toml"]
    overview = miles("config", "show", env=layered).stdout.splitlines()
    assert {"  project     miles.toml", "  standing    site.toml ($MILES_CONFIG)"} <= set(overview)


def test_the_overview_shows_the_command_that_a_file_is_about(place: Path) -> None:
    (place / "a.toml").write_text("[train-async]\nfully_async = true\n")
    assert "miles train-async" in miles("config", "show", "--config", "a.toml").stdout


def test_only_what_was_changed() -> None:
    words = ("config", "show", "train", "--preset", "reverse", "--seed", "1234", "--changed")
    plain = miles(*words).stdout
    assert "lr = 0.0002  # preset reverse" in plain
    assert not {"weight_decay", "seed", "num_engines", "global_batch_size"} & {line.split(" ")[0] for line in plain.splitlines()}
    data = json.loads(miles(*words, "--format", "json").stdout)
    shown = {line.split(" ")[0] for line in plain.splitlines() if " = " in line and not line.startswith("#")}
    assert set(data["values"]) == shown
    toml = miles(*words, "--format", "toml").stdout
    assert {line.split(" ")[0] for line in toml.splitlines() if " = " in line and not line.startswith("#")} == shown


def test_what_is_changed_alone_gives_the_same_again(place: Path) -> None:
    words = ("config", "show", "train-async", "--preset", "reverse", "--fully-async", "--lr", "0.5")
    (place / "few.toml").write_text(miles(*words, "--changed", "--format", "toml").stdout)
    (place / "all.toml").write_text(miles(*words, "--format", "toml").stdout)
    assert "resolve to the same" in miles("config", "diff", "few.toml", "all.toml").stdout


def test_a_run_folder_is_shown_in_every_form(place: Path) -> None:
    words = ("config", "show", "train-async", "--preset", "reverse", "--fully-async", "--lr", "0.5")
    (place / "run").mkdir()
    (place / "run" / RECORD_FILE).write_text(miles(*words, "--format", "json").stdout)
    (place / "run" / "config.toml").write_text(miles(*words, "--format", "toml").stdout)
    shown = miles("config", "show", "run").stdout.splitlines()
    assert shown[1:] == miles(*words).stdout.splitlines()[1:]
    assert shown[0] == miles(*words).stdout.splitlines()[0] + " · as run in run"
    assert miles("config", "show", "run", "--format", "toml").stdout == (place / "run" / "config.toml").read_text()
    assert (
        miles("config", "show", "run", "--changed").stdout.splitlines()[1:] == miles(*words, "--changed").stdout.splitlines()[1:]
    )
    assert json.loads(miles("config", "show", "run", "--format", "json").stdout)["command"] == "train-async"


def test_neither_command_nor_folder() -> None:
    assert "there is no such command or folder" in miles("config", "show", "nowhere", code=2).stderr


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(option=st.sampled_from(all_options()), data=st.data())
def test_an_option_is_explained_under_every_spelling(option: Option, data: st.DataObject) -> None:
    plain = miles("config", "explain", option.name).stdout
    for text in (option.help, option.flag, option.variable, *option.commands, *map(str, option.choices)):
        assert text in plain
    spellings = (option.flag, "$" + option.variable, option.variable, option.name.replace("_", "-"))
    assert miles("config", "explain", data.draw(st.sampled_from(spellings))).stdout == plain


def test_explain_knows_value_owner_and_relatives() -> None:
    text = miles("config", "explain", "--lr-decay-style", "--preset", "reverse", env={"MILES_LR_DECAY_STYLE": "cosine"}).stdout
    assert "now       cosine  $MILES_LR_DECAY_STYLE · over preset reverse (linear)  (miles train)" in text
    assert "--min-lr" in text.split("related")[1]
    owned = miles("config", "explain", "rollout_function_path").stdout
    assert "miles train, miles train-async without --fully-async" in owned
    fully = miles("config", "explain", "max-weight-staleness").stdout
    assert "miles train-async --fully-async" in fully
    assert "max_weight_staleness in [train-async.fully-async]" in fully
    assert "does not count in `miles train-async`" in fully
    assert "none (train), tis (train-async)" in miles("config", "explain", "off_policy_correction").stdout


def test_explain_finds_what_was_meant() -> None:
    assert "There is no lerning_rate; the nearest is --lr." in miles("config", "explain", "lerning_rate").stdout
    assert miles("config", "explain", "max_steps").stdout.splitlines()[2].startswith("num_rollout: ")
    assert "staleness_bound: derived from options" in miles("config", "explain", "staleness_bound", "--preset", "reverse").stdout
    assert "miles config search qqq" in miles("config", "explain", "qqq", code=2).stderr


def test_explain_for_programs() -> None:
    data = json.loads(miles("config", "explain", "lr", "--format", "json").stdout)
    assert (data["flag"], data["default"], data["variable"]) == ("--lr NUMBER", "1e-6", "MILES_LR")


def test_explain_shows_no_secret() -> None:
    assert "s3cr3t" not in miles("config", "explain", "wandb_key", env={"MILES_WANDB_KEY": "s3cr3t"}).output


def test_search() -> None:
    lines = miles("config", "search", "Weight", "staleness").stdout.splitlines()
    assert lines[0].startswith("--max-weight-staleness  ")
    assert all("stale" in line.lower() for line in lines)
    assert "no option speaks of them all" in miles("config", "search", "qqq", code=2).stderr


def test_diff_exits_by_what_it_finds(place: Path) -> None:
    (place / "a.toml").write_text("lr = 1\n")
    (place / "b.toml").write_text("\nlr = 2\n")
    out = miles("config", "diff", "a.toml", "b.toml", code=1).stdout.splitlines()
    assert out[:5] == [
        "--- a.toml  (miles train)", "+++ b.toml  (miles train)", "lr", "  - 1.0  # a.toml:1", "  + 2.0  # b.toml:2",
    ]  # fmt: skip
    assert miles("config", "diff", "a.toml", "b.toml", "--exit-zero").stdout.splitlines() == out
    assert miles("config", "diff", "a.toml", "a.toml").stdout == "a.toml and a.toml resolve to the same\n"
    data = json.loads(miles("config", "diff", "a.toml", "b.toml", "--format", "json", code=1).stdout)
    assert data == [
        {"option": "lr", "first": {"value": "1.0", "origin": "a.toml:1"}, "second": {"value": "2.0", "origin": "b.toml:2"}}
    ]
    assert "is not one of train, train-async" in miles("config", "diff", "a.toml", "b.toml", "--command", "trian", code=2).stderr


def test_validate_tells_file_line_what_why_and_what_to_do(place: Path) -> None:
    (place / "a.toml").write_text("lr = nan\nfoo = 1\n")
    (place / "b.toml").write_text("seed = 1\n")
    lines = miles("config", "validate", "a.toml", "b.toml", "gone.toml", code=2).stdout.splitlines()
    assert lines == [
        "a.toml:1: lr = nan: is not a finite number. Give --lr a number above 0",
        "a.toml:2: foo = 1: there is no such option. `miles train --help` lists the options",
        "gone.toml:1: config: there is no such file. Correct the path",
    ]
    assert miles("config", "validate", "b.toml").stdout == "b.toml: nothing is wrong\n"
    data = json.loads(miles("config", "validate", "a.toml", "--format", "json", code=2).stdout)
    assert [(item["file"], item["line"], item["option"]) for item in data] == [("a.toml", 1, "lr"), ("a.toml", 2, "foo")]
    github = miles("config", "validate", "a.toml", "--format", "github", code=2).stdout.splitlines()
    assert github[0] == "::error file=a.toml,line=1,title=miles::lr: is not a finite number. Give --lr a number above 0"
    assert json.loads(miles("config", "validate", "b.toml", "--format", "json").stdout) == []


def test_validate_tells_the_line_of_an_item(place: Path) -> None:
    (place / "a.toml").write_text("[sglang]\nlog-level = 'info'\nfoo = 1\n[eval_prompt_data]\nx = 'gone.jsonl'\n")
    lines = miles("config", "validate", "a.toml", code=2).stdout.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["a.toml:3:", "a.toml:5:"]
    assert [line.split(" ")[0] for line in miles("config", "validate", "--no-paths", "a.toml", code=2).stdout.splitlines()] == [
        "a.toml:3:"
    ]


def test_schema_and_starter(place: Path) -> None:
    assert json.loads(miles("config", "schema").stdout)["properties"]["lr"] == {"$ref": "#/$defs/lr"}
    (place / "miles.toml").write_text(miles("config", "init", "--preset", "reverse").stdout)
    assert miles("config", "validate", "miles.toml").stdout == "miles.toml: nothing is wrong\n"
    assert "resolve to the same" in miles("config", "diff", "miles.toml", "reverse").stdout
    for command in ("schema", "init"):
        assert "is not one of train, train-async" in miles("config", command, "trian", code=2).stderr


def test_a_dry_run_for_programs() -> None:
    data = json.loads(miles("train", "--preset", "reverse", "--dry-run", "--json").stdout)
    assert data["configuration"]["values"]["lr"]["origin"] == "preset reverse"
    assert data["plan"]["work"]["samples"] == 150 * 16 * 8
    assert data["plan"]["memory_bytes"]["parameters"] > 0
    assert "--dry-run" in miles("train", "--preset", "reverse", "--json", code=2).stderr


@pytest.fixture
def broken(place: Path) -> Path:
    """Files that are none, and a run folder without its files."""
    (place / "binary.toml").write_bytes(bytes(range(256)))
    (place / "loop.toml").symlink_to("loop.toml")
    (place / "folder.toml").mkdir()
    (place / "latin.toml").write_bytes(b'input_key = "\xe9"\n')
    (place / "run").mkdir()
    (place / "run" / RECORD_FILE).write_text('{"command": "train", "schedule": "sync", "staleness_bound": 0, "values": {}}')
    return place


@pytest.mark.parametrize("file", ["binary.toml", "loop.toml", "folder.toml", "latin.toml", "gone.toml", "run", ""])
def test_what_is_no_file_is_a_sentence_everywhere(broken: Path, file: str) -> None:
    for words in (("validate", file), ("diff", file, "reverse"), ("diff", "reverse", file), ("show", "--config", file)):
        if words[0] != "diff" or file != "run":
            assert miles("config", *words, code=2).output
    assert miles("config", "show", env={"MILES_CONFIG": file}, code=2 if file else 0).output
    assert miles("config", "show", "run", "--format", "toml", code=2).stderr


def test_a_project_file_that_leads_nowhere_is_told(place: Path) -> None:
    (place / "miles.toml").symlink_to("elsewhere.toml")
    assert "miles.toml (working directory): there is no such file" in miles("config", "show", code=2).stderr
    assert "but there is something wrong (1): miles config show train" in miles("config", "explain", "lr").stdout
