"""The machine judged: from numbers alone, so that every judgement can be made here; then once for real."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from miles.weights.folder import PREFIX
from miles_cli import findings, machine
from miles_cli.app import app
from miles_cli.doctor import is_fit
from miles_cli.findings import GIB, Finding, Gpu
from miles_cli.leftovers import leftover_folders, leftover_processes, size_of

pytestmark = pytest.mark.cli
SIZES = st.integers(0, 2**45)


@given(SIZES, SIZES)
def test_more_is_never_worse(less: int, more: int) -> None:
    less, more = sorted((less, more))
    order = ["problem", "warning", "ok"]
    judges = (lambda size: findings.judge_memory(size, size), findings.judge_shared_memory, findings.judge_open_files,
              lambda size: findings.judge_disk("runs", size, writable=True))  # fmt: skip
    for judge in judges:
        assert order.index(judge(less).state) <= order.index(judge(more).state)
        assert (judge(less).remedy == "") == (judge(less).state == "ok")


@pytest.mark.parametrize(
    ("finding", "state", "words"),
    [
        (findings.judge_package("torch", "torch>=2.9", None, fits=False), "problem", "pip install 'torch>=2.9'"),
        (findings.judge_package("torch", "torch>=2.9", "2.1", fits=False), "problem", "2.1 does not fit torch>=2.9"),
        (findings.judge_package("torch", "torch>=2.9", "2.9", fits=True), "ok", "2.9"),
        (findings.judge_optional("sglang", None, "0.5", has_gpu=True), "warning", "pip install sglang==0.5"),
        (findings.judge_optional("sglang", None, "0.5", has_gpu=False), "ok", "embedded"),
        (findings.judge_optional("sglang", "0.4", "0.5", has_gpu=False), "warning", "0.4, and miles is tested with 0.5"),
        (findings.judge_optional("sglang", "0.5", "0.5", has_gpu=True), "ok", "0.5"),
        (findings.judge_sglang_start("", has_gpu=True), "ok", "can be imported"),
        (findings.judge_sglang_start("no x", has_gpu=True), "problem", "would not start: no x"),
        (findings.judge_sglang_start("no x", has_gpu=False), "warning", "requirements/sglang-cpu.txt"),
        (findings.judge_engine_ports(15000, 1, 100), "ok", "1 of 100 from 15000"),
        (findings.judge_engine_ports(15000, 0, 100), "problem", "--engine-first-port"),
        (findings.judge_shared_memory(None), "ok", "files"),
        (findings.judge_ports("denied"), "problem", "denied"),
        (findings.judge_ray(None, None, ""), "ok", "started for each run"),
        (findings.judge_ray("a:1", None, ""), "ok", "a:1 answers"),
        (findings.judge_ray("a:1", None, "refused"), "problem", "ray start --head"),
        (findings.judge_ray(None, "a:1", ""), "problem", "--ray-address a:1"),
        (findings.judge_disk("runs", 10**15, writable=False), "problem", "--run-dir"),
    ],
)
def test_judgements(finding: Finding, state: str, words: str) -> None:
    assert finding.state == state
    assert words in f"{finding.text} {finding.remedy}"


def test_gpus() -> None:
    assert [found.state for found in findings.judge_gpus(None, "2.9")] == ["problem"]
    assert [found.state for found in findings.judge_gpus([], "2.9+cpu")] == ["ok"]
    idle, busy = Gpu("H200", 141 * GIB, 140 * GIB), Gpu("H200", 141 * GIB, GIB)
    assert [found.state for found in findings.judge_gpus([idle, busy], "2.9+cu128")] == ["ok", "warning"]
    assert [found.name for found in findings.judge_gpus([idle], "2.9+cpu")] == ["torch for CUDA", "GPU 0"]


def test_an_address_is_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert machine.error_of_connecting(f"127.0.0.1:{port}") == ""
        assert machine.error_of_connecting(f"ray://127.0.0.1:{port}") == ""
    assert machine.error_of_connecting(f"127.0.0.1:{port}")
    assert machine.error_of_connecting("auto") == ""
    assert machine.error_of_connecting("nonsense") == "it is no HOST:PORT"
    assert machine.error_of_binding() == ""


def test_the_packages_of_this_environment_fit() -> None:
    found = {finding.name: finding.state for finding in machine.packages()}
    assert found == {"torch": "ok", "ray": "ok", "transformers": "ok"}


def test_a_missing_requirement_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.metadata, "requires", lambda name: ["pytest>=9999", "gone>=1", "mypy>=1; extra == 'dev'"])
    assert {finding.name: finding.state for finding in machine.packages()} == {"pytest": "problem", "gone": "problem"}


def test_what_sglang_asks_for_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        machine.metadata, "requires", lambda name: ["torch==1.0", "transformers", "torchaudio==2", "ray; extra == 'x'"]
    )
    found = machine.misfits("sglang")
    assert list(found) == ["torch"]
    (finding,) = findings.judge_pins("sglang", "0.5", found)
    assert (finding.state, finding.remedy) == ("warning", "pip install 'torch==1.0'")
    assert "sglang 0.5 asks for torch==1.0, and " in finding.text


@pytest.mark.parametrize(
    ("text", "error"),
    [("", ""), ("import gone_for_good", "No module named 'gone_for_good'"), ("raise SystemExit(3)", "exit code 3")],
)
def test_sglang_is_imported_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: str
) -> None:
    for module in ("launch_server", "srt/__init__", "srt/entrypoints/__init__", "srt/entrypoints/http_server", "__init__"):
        (tmp_path / "sglang" / f"{module}.py").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sglang" / f"{module}.py").write_text(text if module == "launch_server" else "")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    said = machine.error_of_importing_sglang(has_gpu=False)
    assert said == error if not error else error in said


def test_what_dead_runs_left_is_found(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, alive = tmp_path / f"{PREFIX}{ended.pid}-x", tmp_path / f"{PREFIX}{os.getpid()}-x"
    for folder in (dead, alive):
        folder.mkdir()
        (folder / "weights").write_bytes(b"1234")
    assert list(leftover_folders([tmp_path])) == [dead]
    assert size_of(dead) == 4
    told = list(findings.judge_leftovers([str(dead)], 4, [(12, "miles.engines.embedded")]))
    assert [finding.remedy for finding in told] == [f"rm -r {dead}", "If they are no servers that you started yourself: kill 12"]
    assert [finding.state for finding in findings.judge_leftovers([], 0, [])] == ["ok"]


def test_a_process_that_lost_its_parent_is_found(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()', "
        "'miles.engines.embedded'], stdin=sys.stdin, stdout=subprocess.DEVNULL); print(child.pid)"
    )
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdin=reading, stdout=subprocess.PIPE, text=True, check=True, timeout=60
        )
        orphan = psutil.Process(int(done.stdout))
        if orphan.ppid() != 1:
            pytest.skip("orphans are taken in by another process than the first one here")
        assert (orphan.pid, "miles.engines.embedded") in list(leftover_processes())
    finally:
        os.close(writing)
        os.close(reading)
    orphan.wait(timeout=20)
    assert orphan.pid not in dict(leftover_processes())


def test_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [Finding("ok", "a", "fine"), Finding("problem", "long name", "broken", "Mend it")]
    monkeypatch.setattr(machine, "look", lambda run_dir, ray_address, *, tries_sglang: iter(told))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 3
    assert result.stdout.splitlines() == [
        "ok       a          fine", "problem  long name  broken", f"{'':20}-> Mend it", "a run could not start here: 1 to mend",
    ]  # fmt: skip
    data = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert data["fit"] is False
    assert data["findings"][1] == {"state": "problem", "name": "long name", "text": "broken", "remedy": "Mend it"}
    assert is_fit(told[:1])


def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    result = CliRunner().invoke(app, ["doctor", "--json", "--no-try-sglang", "--run-dir", str(tmp_path / "new")])
    data = json.loads(result.stdout)
    assert result.exit_code == (0 if data["fit"] else 3)
    names = {finding["name"] for finding in data["findings"]}
    assert {"Python", "torch", "ray", "GPUs", "memory", "open files", "ports", "Ray", "leftovers", "run folder"} <= names | {
        "GPUs"
    }
