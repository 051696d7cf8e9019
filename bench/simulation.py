"""The simulation held against real runs: ratios of step time between the three schedules, predicted and measured.

    python bench/simulation.py --repeats 3 --rollouts 40

Runs the preset by each schedule in turn, repeatedly, takes the median step time of each, simulates all three from the synchronous
run of the same repeat, and prints both. It also prints the fully async step over the longer of rollout and training alone, as the
synchronous run measured them, and the driver's CPU time. Needs a machine that does nothing else.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from miles.config.sources import Sources
from miles.simulation.recorded import median_of, recorded_workload
from miles.simulation.schedules import resolutions
from miles.simulation.simulate import simulate
from miles.tracking.metrics_file import read_rows
from miles.types import Metrics

MILES = Path(sys.executable).with_name("miles")
COMMANDS = {"sync": ["train"], "one_step_off": ["train-async"], "fully_async": ["train-async", "--fully-async"]}


def run(schedule: str, folder: Path, rollouts: int) -> tuple[list[Metrics], float]:
    """The rows after the warm-up of a real run, and the CPU seconds that the driver itself took."""
    flags = ["--preset", "reverse", "--num-rollout", str(rollouts), "--skip-eval-before-train", "--run-dir", str(folder)]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen([MILES, *COMMANDS[schedule], *flags], stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the {schedule} run failed; see {log.name}")
    rows = [row for row in read_rows(folder / "metrics.jsonl") if "perf/train_time" in row]
    return rows[rollouts // 4 :], usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=40)
    given = parser.parse_args()
    measured: dict[str, list[float]] = {name: [] for name in COMMANDS}
    predicted: dict[str, list[float]] = {name: [] for name in COMMANDS}
    overlap = []
    with tempfile.TemporaryDirectory() as parent:
        for repeat in range(given.repeats):
            found = resolutions(Sources(preset="reverse", environ={}))
            for schedule in COMMANDS:
                rows, cpu = run(schedule, Path(parent) / f"{schedule}-{repeat}", given.rollouts)
                measured[schedule].append(median_of(rows, "perf/step_time"))
                if schedule == "sync":
                    alone = max(median_of(rows, "perf/rollout_time"), median_of(rows, "perf/train_time"))
                print(f"{schedule}: {measured[schedule][-1]:.3f} s a step, driver {cpu / given.rollouts:.3f} s of CPU a step")
            overlap.append(measured["fully_async"][-1] / alone)
            sync = found["sync"]
            workload = recorded_workload(Path(parent) / f"sync-{repeat}", sync, sync.config.engine.engine_max_running_requests)
            for schedule, each in found.items():
                forecast = simulate(each, workload, num_engines=each.derived.num_engines, num_steps=given.rollouts)
                predicted[schedule].append(forecast.step_seconds)
    for schedule in ("one_step_off", "fully_async"):
        ours, theirs = (statistics.median(rows[schedule]) / statistics.median(rows["sync"]) for rows in (predicted, measured))
        print(f"{schedule} / sync: predicted {ours:.2f}, measured {theirs:.2f}, off by {abs(ours / theirs - 1):.0%}")
    print(f"fully async step / max(rollout alone, training alone): {statistics.median(overlap):.2f}")


if __name__ == "__main__":
    main()
