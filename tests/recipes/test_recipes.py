"""Recipes: each has a page, a launch script of one command, and a plan that is what the page shows."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from miles.config.model_size import model_size
from miles_cli.app import app
from tests.recipes.page import MODELS, PAGES, RECIPES, ROOT, command_of, dry_run, model_of, page, script_of

pytestmark = pytest.mark.cli


def test_there_are_the_recipes() -> None:
    assert set(RECIPES) == {"qwen3-0.6b-gsm8k", "qwen3-4b-dapo-math", "qwen3-4b-fully-async", "qwen3-30b-a3b-fully-async"}
    assert {path.stem for path in PAGES.glob("*.md")} == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_the_page_is_what_the_recipe_does(name: str) -> None:
    assert (PAGES / f"{name}.md").read_text() == page(name), "run: python -m tests.recipes"


@pytest.mark.parametrize("name", RECIPES)
def test_a_launch_script_is_one_command(name: str, tmp_path: Path) -> None:
    miles = tmp_path / "miles"
    miles.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    miles.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "MODEL": "a model", "DATA": "d.jsonl"}
    done = subprocess.run([script_of(name), "--seed", "1"], capture_output=True, text=True, env=env, timeout=20, check=True)
    expected = command_of(name).replace('"$MODEL"', "'a model'").replace('"$DATA"', "d.jsonl").replace('"$@"', "--seed 1")
    assert done.stdout.splitlines() == shlex.split(expected)[1:]


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_compute_in_bfloat16_and_fit_their_gpus(name: str) -> None:
    out = dry_run(name)
    assert "dtype = bfloat16" in out
    assert "fits: each" in out
    assert "does not fit" not in out


def test_dapo_is_sync_and_colocated() -> None:
    out = dry_run("qwen3-4b-dapo-math")
    assert "sync: the policy waits for rollout k" in out
    assert "[GPU 7 rank 7 + engine 7 sglang]" in out
    assert "fits: each device while it trains" in out


def test_nobody_spells_out_a_rollout_function() -> None:
    for path in (*(ROOT / "examples").glob("*.sh"), *PAGES.glob("*.md"), *(ROOT / "src/miles/presets").glob("*/preset.toml")):
        assert "rollout-function-path" not in path.read_text().replace("_", "-"), path


def test_the_switch_is_the_command_s_and_the_plan_says_what_it_means() -> None:
    out = dry_run("qwen3-30b-a3b-fully-async")
    assert "staleness at most 2 weight versions" in out
    assert "stops after 3 rollouts" in out


@pytest.mark.parametrize(
    ("model", "billions"), [("Qwen/Qwen3-0.6B", 0.596), ("Qwen/Qwen3-4B", 4.02), ("Qwen/Qwen3-30B-A3B", 30.53)]
)
def test_models_have_their_published_size(model: str, billions: float) -> None:
    size = model_size(MODELS[model])
    assert size is not None
    assert size.parameters / 1e9 == pytest.approx(billions, rel=0.003)


@pytest.mark.parametrize("name", RECIPES)
def test_what_a_recipe_needs_is_said_when_it_is_missing(name: str) -> None:
    words = shlex.split(command_of(name))[1:]
    result = CliRunner().invoke(app, words[: words.index("--hf-checkpoint")])
    assert result.exit_code == 2
    assert f"Preset {name} needs {model_of(name)} as a folder" in result.stderr
    assert "prompt_data: is missing" in result.stderr
