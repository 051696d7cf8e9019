"""The simulation held against real runs: ratios of step time between the three schedules, predicted and measured.

    python bench/simulation.py --repeats 3 --rollouts 80

Runs the preset by each schedule in turn, repeatedly, takes the median step time of each, simulates all three from the synchronous
run of the same repeat and from nothing else, and prints both. It also prints what the simulation learned from that run, and the
fully async step over the longer of rollout and training alone. Needs a machine that does nothing else.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from miles.config.sources import Sources
from miles.simulation.recorded import median_of, recorded_workload
from miles.simulation.schedules import resolutions
from miles.simulation.simulate import simulate
from miles.simulation.workload import Workload
from miles.tracking.metrics_file import read_rows
from miles.types import Metrics

MILES = Path(sys.executable).with_name("miles")
COMMANDS = {"sync": ["train"], "one_step_off": ["train-async"], "fully_async": ["train-async", "--fully-async"]}


def run(schedule: str, folder: Path, rollouts: int) -> list[Metrics]:
    """The rows after the warm-up of a real run."""
    flags = ["--preset", "reverse", "--num-rollout", str(rollouts), "--skip-eval-before-train", "--run-dir", str(folder)]
    flags += ["--eval-interval", str(rollouts)]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        done = subprocess.run([MILES, *COMMANDS[schedule], *flags], stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise SystemExit(f"the {schedule} run failed:\n{Path(log.name).read_text()[-3000:]}")
    return [row for row in read_rows(folder / "metrics.jsonl") if "perf/train_time" in row][rollouts // 4 :]


def learned(workload: Workload) -> str:
    """Every number of a workload, in milliseconds."""
    seconds = asdict(workload.speeds) | asdict(workload.overheads)
    parts = [f"{name.removesuffix('_seconds')} {value * 1e3:.3g}" for name, value in seconds.items() if name != "train_tokens"]
    return f"{workload.cores} cores, prompts of {workload.prompt_tokens:.1f} tokens; ms: {', '.join(parts)}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=80)
    given = parser.parse_args()
    measured: dict[str, list[float]] = {name: [] for name in COMMANDS}
    predicted: dict[str, list[float]] = {name: [] for name in COMMANDS}
    overlap = []
    found = resolutions(Sources(preset="reverse", environ={}))
    with tempfile.TemporaryDirectory() as parent:
        for repeat in range(given.repeats):
            rows = {name: run(name, Path(parent) / f"{name}-{repeat}", given.rollouts) for name in COMMANDS}
            alone = max(median_of(rows["sync"], f"perf/{part}_time") for part in ("rollout", "train"))
            sync = found["sync"]
            workload = recorded_workload(Path(parent) / f"sync-{repeat}", sync, sync.config.engine.engine_max_running_requests)
            print(f"repeat {repeat} learned {learned(workload)}")
            for name, each in found.items():
                forecast = simulate(each, workload, num_engines=each.derived.num_engines, num_steps=given.rollouts)
                predicted[name].append(forecast.step_seconds)
                measured[name].append(median_of(rows[name], "perf/step_time"))
                print(f"  {name}: predicted {predicted[name][-1] * 1e3:.0f} ms a step, measured {measured[name][-1] * 1e3:.0f}")
            overlap.append(measured["fully_async"][-1] / alone)
    for name in ("one_step_off", "fully_async"):
        ours, theirs = (statistics.median(steps[name]) / statistics.median(steps["sync"]) for steps in (predicted, measured))
        print(f"{name} / sync: predicted {ours:.2f}, measured {theirs:.2f}, off by {abs(ours / theirs - 1):.0%}")
    print(f"fully async step / max(rollout alone, training alone): {statistics.median(overlap):.2f}")


if __name__ == "__main__":
    main()
