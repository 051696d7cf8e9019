"""TRL and the three schedules on the same model, prompts and hyper-parameters, in alternating repeats.

    python bench/first_light.py --trl-python PATH_TO_A_VENV_WITH_TRL/bin/python [--repeats 3] [--steps 60]

Prints a table of medians over the repeats: step time and its ratio to TRL's in the same repeat, tokens/s end to end,
held-out accuracy before and after, memory of the whole process tree, and where a step's time goes. Speeds of a shared
machine drift, so compare only inside one run.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

PRESET = Path(__file__).parents[1] / "src/miles/presets/reverse"
MILES = Path(sys.executable).with_name("miles")
SCHEDULES = {"sync": ["train"], "one step off": ["train-async"], "fully async": ["train-async", "--fully-async"]}
WARM_UP = 3  # rollouts left out of the medians
Result = dict[str, Any]


def peak_memory_mb(process: subprocess.Popen[str]) -> Callable[[], float]:
    """Watch a process tree; the function returned gives the largest sum of proportional set sizes seen, in MB."""
    peak, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            total = 0.0
            try:
                family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            for member in family:
                try:
                    total += member.memory_full_info().pss
                except psutil.Error:
                    continue
            peak[0] = max(peak[0], total / 2**20)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()

    def finish() -> float:
        over.set()
        thread.join()
        return peak[0]

    return finish


def run(command: list[str]) -> tuple[str, float]:
    """Output and peak memory of a command that must succeed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    memory = peak_memory_mb(process)
    output, _ = process.communicate()
    peak = memory()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{output[-3000:]}")
    return output, peak


def run_trl(python: str, steps: int, seed: int) -> Result:
    """One run of TRL."""
    with tempfile.TemporaryDirectory() as out:
        script = str(Path(__file__).with_name("trl_run.py"))
        flags = ["--preset-dir", str(PRESET), "--steps", str(steps), "--seed", str(seed), "--out", out]
        output, memory = run([python, script, *flags])
    return json.loads(output.strip().splitlines()[-1]) | {"memory_mb": memory, "parts": {}}


def run_miles(words: list[str], steps: int, seed: int) -> Result:
    """One run of a schedule."""
    with tempfile.TemporaryDirectory() as out:
        run_dir = Path(out) / "run"
        flags = ["--num-rollout", str(steps), "--eval-interval", str(steps), "--seed", str(seed), "--rollout-seed", str(seed)]
        _, memory = run([str(MILES), *words, "--preset", "reverse", *flags, "--run-dir", str(run_dir)])
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return summary(rows) | {"memory_mb": memory}


def summary(rows: list[dict[str, float]]) -> Result:
    """What the table needs of a metrics file."""
    steps = [row for row in rows if "train/loss" in row][WARM_UP:]
    evals = [row["eval/reverse"] for row in rows if "eval/reverse" in row]
    parts = {"wait": "train_wait_time", "train": "train_time", "publish": "update_weights_time"}
    return {
        "step_ms": statistics.median(row["perf/step_time"] for row in steps) * 1e3,
        "tokens_per_second": sum(row["rollout/num_tokens"] for row in steps) / sum(row["perf/step_time"] for row in steps),
        "first": evals[0],
        "last": evals[-1],
        "parts": {name: statistics.median(row[f"perf/{key}"] for row in steps) * 1e3 for name, key in parts.items()},
    }


def table(results: dict[str, list[Result]]) -> str:
    """Markdown, medians over the repeats; ratios are taken inside each repeat."""
    lines = ["| | step ms | × TRL | tokens/s | accuracy | memory MB | of a step, ms |", "|---|---|---|---|---|---|---|"]
    for name, runs in results.items():
        ratios = [one["step_ms"] / trl["step_ms"] for one, trl in zip(runs, results["TRL"], strict=True)]
        middle = {key: statistics.median(one[key] for one in runs) for key in runs[0] if key != "parts"}
        parts = {key: statistics.median(one["parts"][key] for one in runs) for key in runs[0]["parts"]}
        where = ", ".join(f"{key} {value:.0f}" for key, value in parts.items())
        lines.append(
            f"| {name} | {middle['step_ms']:.0f} | {statistics.median(ratios):.2f} | {middle['tokens_per_second']:,.0f} | "
            f"{middle['first']:.3f} → {middle['last']:.3f} | {middle['memory_mb']:,.0f} | {where} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run everything in turn, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    results: dict[str, list[Result]] = {"TRL": [], **{name: [] for name in SCHEDULES}}
    for seed in range(arguments.repeats):
        results["TRL"].append(run_trl(arguments.trl_python, arguments.steps, seed))
        for name, words in SCHEDULES.items():
            results[name].append(run_miles(words, arguments.steps, seed))
        print(
            f"repeat {seed}: " + ", ".join(f"{name} {runs[-1]['step_ms']:.0f} ms" for name, runs in results.items()), flush=True
        )
    print(table(results))


if __name__ == "__main__":
    main()
