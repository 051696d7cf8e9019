"""What Tab offers, as a function of the words before the cursor."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from miles.config.presets import preset_names
from miles.config.registry import all_options, options_of
from miles_cli.app import app
from miles_cli.completion import VARIABLE

pytestmark = pytest.mark.cli
COMMANDS = ("train", "train-async")


def tab(line: str, current: str = "") -> list[str]:
    """The candidates after the words of ``line``."""
    request = "\n".join([current, *line.split()])
    result = CliRunner().invoke(app, [], env={VARIABLE: request})
    assert result.exit_code == 0, result.output
    return [answer.partition("\t")[0] for answer in result.output.splitlines() if answer]


@settings(max_examples=40, deadline=None)
@given(command=st.sampled_from(COMMANDS), option=st.sampled_from(all_options()), data=st.data())
def test_every_beginning_of_an_own_option_offers_it_and_of_a_foreign_one_does_not(command, option, data) -> None:
    begun = option.flag[: data.draw(st.integers(2, len(option.flag)))]
    offered = tab(command, begun)
    assert all(word.startswith(begun) for word in offered)
    assert (option.flag in offered) == (command in option.commands)


@pytest.mark.parametrize("command", COMMANDS)
def test_all_options_of_the_command_are_offered(command: str) -> None:
    own = {option.flag for option in options_of(command)} | {
        "--preset",
        "--config",
        "--dry-run",
        "--gpu-memory-gib",
        "--json",
        "--help-all",
        "--help",
    }
    assert set(tab(command, "--")) == own
    assert set(tab(f"config show {command}", "--")) == own - {"--dry-run", "--json", "--gpu-memory-gib"} | {
        "--format",
        "--changed",
    }


@pytest.mark.parametrize("option", [option for option in all_options() if option.choices], ids=lambda option: option.name)
def test_choices_are_offered_after_the_flag_and_after_an_equals_sign(option) -> None:
    command = option.commands[0]
    words = [str(choice) for choice in option.choices]
    assert tab(f"{command} {option.flag}") == words
    assert tab(f"{command} {option.flag} =") == words
    assert tab(command, f"{option.flag}=") == [f"{option.flag}={word}" for word in words]


@pytest.mark.parametrize(
    ("line", "current", "expected"),
    [
        ("train-async", "--fu", ["--fully-async"]),
        ("train", "--fu", []),
        ("", "tr", ["train", "train-async"]),
        ("", "--v", ["--version"]),
        ("config", "s", ["search", "schema", "show"]),
        ("config show", "", ["train", "train-async", "sft"]),
        ("train --preset", "", list(preset_names())),
        ("train", "--preset=", [f"--preset={name}" for name in preset_names()]),
        ("train --config", "", [":file toml"]),
        ("train --prompt-data", "", [":file jsonl"]),
        ("config validate", "", [":file toml"]),
        ("config explain", "lr", ["lr", "lr_decay_style", "lr_warmup_iters"]),
        ("config explain", "--lr-", ["--lr-decay-style", "--lr-warmup-iters"]),
        ("config explain", "MILES_LR_", ["MILES_LR_DECAY_STYLE", "MILES_LR_WARMUP_ITERS"]),
        ("config explain", "sglang.mem-fraction-s", ["sglang.mem-fraction-static"]),
        ("config schema", "", ["train", "train-async", "sft"]),
        ("config diff", "rev", ["reverse", "reverse-sft"]),
        ("config validate --format", "", ["plain", "json", "github"]),
        ("train --hf-checkpoint", "x", [":folder"]),
        ("train", "--hf-checkpoint=x", [":folder"]),
        ("train --eval-prompt-data", "", []),
        ("train --eval-prompt-data name", "", [":file jsonl"]),
        ("train --eval-prompt-data name file", "--n-samples-per-e", ["--n-samples-per-eval-prompt"]),
        ("train --lr", "", []),
        ("train --lr 1", "--lr", ["--lr-decay-style", "--lr-warmup-iters"]),
        ("train --eval-prompt-data a b", "--eval-prompt", ["--eval-prompt-data"]),
        ("train", "--no-rollout-s", ["--no-rollout-shuffle"]),
        ("train --rollout-shuffle", "--no-rollout-s", []),
        ("train", "", []),
        ("train --sglang", "mem-fraction-s", ["mem-fraction-static"]),
        ("train --sglang", "tp-s", []),
        ("train --sglang mem-fraction-static", "", []),
        ("train --router", "cache-t", ["cache-threshold"]),
    ],
)
def test_cases(line: str, current: str, expected: list[str]) -> None:
    assert tab(line, current) == expected


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with two runs, one of them with checkpoints, and some code."""
    for name in ("one", "two"):
        (tmp_path / "runs" / name / "checkpoints" / "rollout-000009").mkdir(parents=True)
        for file in ("config.json", "config.toml"):
            (tmp_path / "runs" / name / file).write_text("{}" if file == "config.json" else "")
    (tmp_path / "runs" / "two" / "checkpoints" / "rollout-000019").mkdir()
    for number in ("000009", "000019"):
        (tmp_path / "runs" / "two" / "checkpoints" / f"rollout-{number}" / "state.json").write_text("{}")
    (tmp_path / "runs" / "two" / "failed" / "rollout-3").mkdir(parents=True)
    (tmp_path / "runs" / "no-run").mkdir()
    (tmp_path / "runs" / "no-run" / "config.json").write_text("{}")  # a model has one, too
    os.utime(tmp_path / "runs" / "one", (1, 1))
    (tmp_path / "my_code.py").write_text('"""Mine."""\nraise SystemExit("imported")\n')
    (tmp_path / "rewards").mkdir()
    text = 'def exact(sample, prompt):\n    """Equal."""\n\nasync def near(s, p): ...\nclass Big: ...\ndef _own(): ...\n'
    (tmp_path / "rewards" / "maths.py").write_text(text)
    (tmp_path / "a.toml").touch()
    (tmp_path / ".hidden.toml").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "current", "expected"),
    [
        ("config show", "runs/", ["runs/two", "runs/one"]),
        ("config show", "", ["train", "train-async", "sft", "runs/two", "runs/one"]),
        ("train --run-dir", "", ["runs/two", "runs/one"]),
        ("train --run-dir", "elsewhere", [":folder"]),
        ("train", "--run-dir=runs/o", ["--run-dir=runs/one"]),
        ("runs show", "", ["runs/two", "runs/one"]),
        ("runs list", "", [":folder"]),
        ("export", "runs/t", ["runs/two"]),
        ("export", "elsewhere", [":folder"]),
        ("export runs/two", "", [":folder"]),
        ("export runs/two out", "", []),
        ("export runs/two --step", "", ["20", "10"]),
        ("export runs/two out --step", "1", ["10"]),
        ("export runs/one --step", "", []),
        ("export gone --step", "", []),
        ("export --step", "", []),
        ("replay", "", ["runs/two/failed/rollout-3"]),
        ("simulate --trace", "", ["runs/two", "runs/one"]),
        (
            "train --load",
            "runs/t",
            ["runs/two/checkpoints/rollout-000019", "runs/two/checkpoints/rollout-000009"],
        ),
        ("config diff a.toml", "", [*preset_names(), "runs/two", "runs/one", "a.toml", "rewards/", "runs/"]),
        ("config diff", ".h", [".hidden.toml"]),
        ("config diff", "rewards/", []),
        ("train --custom-rm-path", "", ["my_code:", "rewards."]),
        ("train --custom-rm-path", "rewards.m", ["rewards.maths:"]),
        ("train --custom-rm-path", "rewards.maths:", ["rewards.maths:exact", "rewards.maths:near", "rewards.maths:Big"]),
        ("train --custom-rm-path", "rewards.maths:n", ["rewards.maths:near"]),
        ("train --custom-rm-path", "gone:", []),
        ("train --custom-rm-path", "gone.", []),
    ],
)
def test_what_lies_about_is_offered(work, line: str, current: str, expected: list[str]) -> None:
    assert tab(line, current) == expected


def test_code_in_the_middle_of_being_written_offers_nothing(work) -> None:
    Path("my_code.py").write_text("def (")
    assert tab("train --custom-rm-path", "my_code:") == []
