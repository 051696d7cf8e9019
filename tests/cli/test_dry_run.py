"""A dry run ends as a start would: with the same refusals and exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from miles.config.devices import Gpu
from miles.config.memory import GIB
from miles.errors import DataError
from miles.loops.data import load_data
from miles.tracking.last_start import note_end, note_start
from miles.tracking.run_folder import RunFolder
from miles_cli import dry_run
from miles_cli.app import app
from tests.pretend import a_machine_with

pytestmark = [pytest.mark.cli, pytest.mark.usefixtures("place")]
WORDS = ("train", "--preset", "reverse", "--dry-run")


def miles(*words: str, code: int) -> str:
    result = CliRunner().invoke(app, [*WORDS, *words])
    assert result.exit_code == code, result.output
    return result.stderr


def test_lines_that_are_no_prompts_are_named_in_all_files(place: Path) -> None:
    (place / "data.jsonl").write_text('{"prompt": "a", "label": "b"}\n{"prompt": 3, "label": "b"}\n{"promt": "a"}\n')
    (place / "held.jsonl").write_text('{"prompt": "a", "label": "b"}\n{\n')
    said = miles("--prompt-data", "data.jsonl", "--eval-prompt-data", "x", "held.jsonl", code=2)
    for place_in_file in ("data.jsonl:2: ", "data.jsonl:3: ", "held.jsonl:2: "):
        assert place_in_file in said
    assert said == miles("--prompt-data", "data.jsonl", "--eval-prompt-data", "x", "held.jsonl", "--json", code=2)


def test_a_start_refuses_the_same_lines(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from miles.config.resolve import resolve
    from miles.config.sources import FlagValue, Sources

    (place / "data.jsonl").write_text('{"prompt": "a", "label": "b"}\n{"prompt": 3, "label": "b"}\n')
    resolution = resolve("train", Sources({"prompt_data": FlagValue("data.jsonl", "--prompt-data")}, preset="reverse"))
    with pytest.raises(DataError) as caught:
        load_data(resolution.config, resolution.derived)
    assert str(caught.value) in miles("--prompt-data", "data.jsonl", code=2)


def test_a_folder_in_which_a_run_is_working(place: Path) -> None:
    (place / "run").mkdir()
    start = note_start(place / "run")
    assert f"run is in use by process {start.pid} on " in miles("--run-dir", "run", code=3)
    note_end(place / "run", start, 0, "")
    miles("--run-dir", "run", code=0)


def test_checkpoints_of_another_run(place: Path) -> None:
    folder = RunFolder(place / "run", place / "kept")
    folder.checkpoint_for(3).mkdir(parents=True)
    folder.point_latest_at(folder.checkpoint_for(3))
    assert "holds the checkpoints of another run" in miles("--save", "kept", code=2)


def test_a_start_is_refused_before_anything_heavy_is_imported(place: Path) -> None:
    (place / "data.jsonl").write_text("{\n")
    code = """
import sys
from typer.testing import CliRunner
from miles_cli.app import app
print(CliRunner().invoke(app, ["train", "--preset", "reverse", "--prompt-data", "data.jsonl"]).exit_code)
print([name for name in ("torch", "ray", "transformers") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n") == ["2", "[]", ""]


def test_more_gpus_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "find_gpus", lambda environ: [Gpu("H200", 140 * GIB, 140 * GIB)])
    with a_machine_with(has_cuda=True, has_sglang=True):
        result = CliRunner().invoke(app, [*WORDS, "--device", "cuda"])
        data = CliRunner().invoke(app, [*WORDS, "--device", "cuda", "--json"])
        assert "the run needs 2 GPU (this machine has 1)" in miles("--device", "cuda", code=3)
    assert (result.exit_code, data.exit_code) == (3, 3)
    assert "fits: each trainer rank" in result.stdout
    assert json.loads(data.stdout)["plan"]["fits"][0]["is_enough"]


def test_fine_tuning_is_planned_on_the_same_terms() -> None:
    words = ["sft", "--preset", "reverse-sft", "--device", "cuda", "--dry-run"]
    stated = CliRunner().invoke(app, [*words, "--gpu-memory-gib", "141"])
    assert "fits: each trainer rank, 93.3 MiB of the 141.0 GiB of a GPU (--gpu-memory-gib)" in stated.stdout
    data = json.loads(CliRunner().invoke(app, [*words, "--gpu-memory-gib", "141", "--json"]).stdout)
    assert [fit["place"] for fit in data["plan"]["fits"]] == ["each trainer rank"]
    assert "counts only with --dry-run" in CliRunner().invoke(app, [*words[:-1], "--gpu-memory-gib", "141"]).stderr
