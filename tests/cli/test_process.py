"""What only a process of its own can show: imports, signals, latency, pipes."""

import os
import resource
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from miles_cli.completion import VARIABLE

pytestmark = [pytest.mark.cli, pytest.mark.timeout(60)]
MILES = str(Path(sys.executable).parent / "miles")
HEAVY = "('torch', 'ray', 'transformers', 'sglang')"
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("MILES_")}


def python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, env=ENVIRON, check=False)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["train", "--help-all"],
        ["config", "show", "train", "--preset", "reverse"],
        ["config", "explain", "lr"],
        ["config", "diff", "reverse", "reverse"],
        ["config", "schema"],
        ["train", "--preset", "reverse", "--dry-run"],
        ["doctor", "--no-try-sglang"],
        [],
    ],
)
def test_nothing_heavy_is_imported(words: list[str]) -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom miles_cli.app import app\n"
        f"result = CliRunner().invoke(app, {words!r})\nassert result.exit_code == 0, result.output\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = python(code)
    assert done.stdout.strip() == "[]", done.stderr


def test_terminated_is_143_and_interrupted_is_130() -> None:
    code = (
        "import os, signal, sys\nfrom miles_cli import training\nfrom miles_cli.app import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whoever runs tests in the background ignores it
        "def stop(*a, **k):\n    os.kill(os.getpid(), int(os.environ['SIGNAL']))\n    signal.pause()\n"
        "training.train_command = stop\nsys.argv = ['miles', 'train']\nmain()"
    )
    for number, expected in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        env = {**ENVIRON, "SIGNAL": str(int(number))}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, env=env, check=False)
        assert done.returncode == expected, done.stderr
        assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_is_no_error_report() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{MILES} config show | head -1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, timeout=50, env=ENVIRON, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr


CASES = [
    (["--help"], "", 0.30),
    (["train", "--help"], "", 0.45),
    (["config", "show", "train", "--preset", "reverse"], "", 0.50),
    (["config", "explain", "lr"], "", 0.50),
    (["train", "--preset", "reverse", "--dry-run"], "", 0.80),
    ([], "--fu\ntrain-async", 0.30),
]


@pytest.mark.parametrize(("words", "tab", "limit_seconds"), CASES)
def test_latency(words: list[str], tab: str, limit_seconds: float) -> None:
    """Median processor time of five, so that other work on the machine does not count."""
    env = {**ENVIRON, VARIABLE: tab} if tab else ENVIRON
    taken = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([MILES, *words], capture_output=True, timeout=50, env=env, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert statistics.median(taken) < limit_seconds
