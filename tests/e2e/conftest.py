"""Whole runs: in this process on one Ray for all of them, or as a process of its own where signals and leftovers matter."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from miles.tracking.metric_book import find_metric
from miles.tracking.metrics_file import read_rows
from miles.types import Metrics

RUN_SECONDS = 240
MILES = Path(sys.executable).with_name("miles")
Rows = list[dict[str, Any]]


@dataclass
class Collector:
    """A reporter that remembers."""

    rows: Rows = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    summary: Any = None

    def stage(self, text: str) -> None:
        """A stage began."""

    def progress(self, row: Metrics, done: int, total: int) -> None:
        self.rows.append(dict(row))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finished(self, summary: Any) -> None:
        self.summary = summary


@pytest.fixture(scope="session")
def one_ray() -> Iterator[None]:
    """One Ray for every run of this process."""
    import logging

    import ray

    ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    yield
    ray.shutdown()


def flags_of(arguments: list[str]) -> dict[str, Any]:
    """``--name value …`` as the command line hands it to the resolver."""
    from miles.config.sources import FlagValue

    flags: dict[str, Any] = {}
    for place, word in enumerate(arguments):
        if word.startswith("--"):
            name, following = word[2:].replace("-", "_"), arguments[place + 1 : place + 2]
            value = following[0] if following and not following[0].startswith("--") else "true"
            flags[name] = FlagValue(value, word)
    return flags


@pytest.fixture
def run_here(one_ray: None, tmp_path: Path) -> Callable[..., Collector]:
    """``run_here("train", "--num-rollout", "12")`` runs the preset in this process; fails unless it exits with 0."""

    def run(command: str, *arguments: str, run_dir: str = "run") -> Collector:
        from miles.config.resolve import resolve
        from miles.config.sources import Sources
        from miles.loops.start import start_run

        flags = flags_of([*arguments, "--run-dir", str(tmp_path / run_dir)])
        resolution = resolve(command, Sources(flags=flags, preset="reverse", environ={}, cwd=tmp_path))
        collector = Collector()
        assert start_run(resolution, collector) == 0
        assert unexplained(tmp_path / run_dir) == set()
        return collector

    return run


def unexplained(run_dir: Path) -> set[str]:
    """Numbers that the run wrote and ``miles metrics explain`` does not know."""
    return {key for row in read_rows(run_dir / "metrics.jsonl") for key in row if find_metric(key) is None}


class RunningMiles:
    """A ``miles`` process, its rows as they appear, and everything it started."""

    def __init__(self, arguments: list[str], run_dir: Path, log: Path) -> None:
        self.run_dir, self.log = run_dir, log
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MILES_")}
        with log.open("wb") as file:
            command = [str(MILES), *arguments, "--run-dir", str(run_dir)]
            self.process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment, stdin=subprocess.DEVNULL
            )
        self.family: list[psutil.Process] = []

    @property
    def rows(self) -> Rows:
        """Whole lines of metrics.jsonl."""
        path = self.run_dir / "metrics.jsonl"
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []

    @property
    def output(self) -> str:
        """What it printed so far."""
        return self.log.read_text(errors="replace")

    def wait_for_rows(self, count: int) -> None:
        """Return when so many rollouts are trained; remembers the processes alive at that moment."""
        deadline = time.monotonic() + RUN_SECONDS
        while sum("train/loss" in row for row in self.rows) < count:
            assert self.process.poll() is None, self.output[-3000:]
            assert time.monotonic() < deadline, self.output[-3000:]
            time.sleep(0.02)
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def wait_for_words(self, words: str) -> None:
        """Return when it has printed them; remembers the processes alive at that moment."""
        deadline = time.monotonic() + RUN_SECONDS
        while words not in self.output:
            assert self.process.poll() is None and time.monotonic() < deadline, self.output[-3000:]
            time.sleep(0.02)
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def child(self, word: str) -> psutil.Process:
        """The process whose command line or name holds ``word``."""
        return self.children(word)[0]

    def children(self, word: str) -> list[psutil.Process]:
        """All of them, oldest first."""
        found = [process for process in self.family if word in process.name() + " ".join(process.cmdline())]
        return sorted(found, key=lambda process: process.create_time())

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(RUN_SECONDS)

    def survivors(self) -> list[psutil.Process]:
        """Processes of the run that are still there a moment after its end."""
        _, alive = psutil.wait_procs(self.family, timeout=20)
        return alive


@pytest.fixture
def start_miles(tmp_path: Path) -> Iterator[Callable[..., RunningMiles]]:
    """Start ``miles`` as a user would; whatever is left at the end of the test is killed."""
    started: list[RunningMiles] = []

    def start(*arguments: str, run_dir: str = "run") -> RunningMiles:
        started.append(RunningMiles(list(arguments), tmp_path / run_dir, tmp_path / f"{run_dir}-{len(started)}.log"))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait(20)
        for process in running.family:
            if process.is_running():
                process.kill()
