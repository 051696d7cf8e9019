"""How well fully async hides the shorter of rollout and training behind the longer one, engine and policy on one core each.

    python bench/overlap.py [--repeats 3] [--rollouts 80] [any option of miles …]

Runs the preset by ``miles train`` and by ``miles train-async --fully-async`` in turn. In both, every thread of the engine is
held to one core and every thread of the policy to another; the driver and Ray go where the system puts them, and on two cores
they take their time from both. The synchronous run says how long rollout and training take alone, the other how long a step is
when they overlap. Prints the ratio (1.00 is perfect), where the time of a step goes, and the CPU time of each process apart.
Needs a machine that does nothing else.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

from miles.simulation.recorded import median_of
from miles.tracking.metrics_file import read_rows
from miles.types import Metrics

MILES = Path(sys.executable).with_name("miles")
COMMANDS = {"sync": ["train"], "fully async": ["train-async", "--fully-async"]}
CORE_OF = {"engine": 0, "policy": 1}
ROLES = ("engine", "policy", "driver", "Ray")
PARTS = {"wait": "perf/train_wait_time", "train": "perf/train_time", "publish": "perf/update_weights_time"}
WARM_UP = 4  # one rollout of so many is left out of the medians


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. rows: after the warm-up; cpu: seconds of CPU a step, by role."""

    rows: list[Metrics]
    cpu: dict[str, float]


def role_of(process: psutil.Process, driver: int) -> str:
    """Whose process it is."""
    name = " ".join(process.cmdline())
    if process.pid == driver:
        return "driver"
    return "engine" if "EngineActor" in name else "policy" if "PolicyWorker" in name else "Ray"


def hold(process: psutil.Process, core: int) -> None:
    """Every thread to one core; threads started later inherit it."""
    for thread in process.threads():
        os.sched_setaffinity(thread.id, {core})


def look(driver: int) -> Counter[str]:
    """CPU seconds by role so far; whoever has a core of its own is held to it."""
    seconds: Counter[str] = Counter()
    top = psutil.Process(driver)
    for process in [top, *top.children(recursive=True)]:
        try:
            role, times = role_of(process, driver), process.cpu_times()
            if role in CORE_OF:
                hold(process, CORE_OF[role])
        except (psutil.Error, ProcessLookupError):
            continue
        seconds[role] += times.user + times.system
    return seconds


class Watch(threading.Thread):
    """Holds a run's processes to their cores and reads their CPU times while rows are written."""

    def __init__(self, driver: int, metrics: Path, rollouts: int) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self._driver, self._metrics, self._rollouts = driver, metrics, rollouts
        self._looks: list[tuple[int, Counter[str]]] = []

    def run(self) -> None:
        """Look every half second."""
        while not self.over.wait(0.5):
            rows = self._metrics.read_bytes().count(b"\n") if self._metrics.exists() else 0
            try:
                seconds = look(self._driver)
            except psutil.Error:
                continue
            if self._rollouts // WARM_UP <= rows < self._rollouts and len(seconds) == len(ROLES):
                self._looks.append((rows, seconds))

    def cpu_per_step(self) -> dict[str, float]:
        """Between the first look after the warm-up and the last before the final step with its evaluation, by role."""
        (first, before), (last, after) = self._looks[0], self._looks[-1]
        return {role: (after[role] - before[role]) / max(last - first, 1) for role in ROLES}


def run(schedule: str, folder: Path, rollouts: int, seed: int, more: list[str]) -> Measured:
    """A real run from beginning to end."""
    flags = ["--preset", "reverse", "--num-rollout", str(rollouts), "--eval-interval", str(rollouts), "--skip-eval-before-train"]
    flags += ["--seed", str(seed), "--rollout-seed", str(seed), "--run-dir", str(folder), *more]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [MILES, *COMMANDS[schedule], *flags], stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        watch = Watch(process.pid, folder / "metrics.jsonl", rollouts)
        watch.start()
        status = process.wait()
    watch.over.set()
    watch.join()
    if status:
        raise SystemExit(f"the {schedule} run failed:\n{Path(log.name).read_text()[-3000:]}")
    rows = [row for row in read_rows(folder / "metrics.jsonl") if "perf/train_time" in row]
    return Measured(rows[rollouts // WARM_UP :], watch.cpu_per_step())


def describe(schedule: str, measured: Measured) -> str:
    """A line of the table, in milliseconds."""
    step, rollout = (median_of(measured.rows, f"perf/{name}_time") * 1e3 for name in ("step", "rollout"))
    parts = [f"{name} {median_of(measured.rows, key) * 1e3:.0f}" for name, key in PARTS.items()]
    cpu = [f"{role} {measured.cpu[role] * 1e3:.0f}" for role in ROLES]
    return f"| {schedule} | {step:.0f} | {rollout:.0f} | {', '.join(parts)} | {', '.join(cpu)} |"


def main() -> None:
    """Print a table, and the ratio of every repeat."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=80)
    given, more = parser.parse_known_args()
    print(f"load average at the start: {psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} CPUs, {time.strftime('%H:%M')}")
    print("| schedule | step ms | rollout ms | of a step, ms | CPU a step, ms |\n|---|---|---|---|---|")
    ratios, alone = [], 0.0
    with tempfile.TemporaryDirectory() as parent:
        for repeat in range(given.repeats):
            for schedule in COMMANDS:
                folder = Path(parent) / f"{schedule.replace(' ', '-')}-{repeat}"
                measured = run(schedule, folder, given.rollouts, repeat, more)
                print(describe(schedule, measured), flush=True)
                if schedule == "sync":
                    alone = max(median_of(measured.rows, key) for key in ("perf/rollout_time", "perf/train_time"))
            ratios.append(median_of(measured.rows, "perf/step_time") / alone)
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"fully async step / max(rollout alone, training alone): {statistics.median(ratios):.2f} ({each})")


if __name__ == "__main__":
    main()
