"""Every estimator and every correction on the `reverse` preset: whether it learns, and in how many steps.

    python bench/algorithms.py [--seeds 1] [--first-seed 0] [--only gspo "async tis"] [--work FOLDER]

Estimators run synchronously, corrections under `--fully-async --max-weight-staleness 4`. Prints the rows of the tables in
docs/algorithms.md as they come: final greedy accuracy on 512 held-out strings, the rollout after which an evaluation first
reached 0.95, seconds.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gspo", "cispo", "ppo")
CORRECTIONS = ("none", "rollout-logprobs", "tis", "icepop", "decoupled")
FULLY = ["train-async", "--fully-async", "--max-weight-staleness", "4"]
LIMIT_SECONDS = 1200


def commands() -> dict[str, list[str]]:
    """Name of the row → arguments of miles."""
    rows = {name: ["train", "--advantage-estimator", name] for name in ESTIMATORS}
    rows |= {f"async {name}": [*FULLY, "--off-policy-correction", name] for name in CORRECTIONS}
    return rows | {"async decoupled recomputed": [*rows["async decoupled"], "--proximal-policy", "recomputed"]}


def run(arguments: list[str], seed: int, work: Path) -> tuple[float, int | None, float]:
    """Final accuracy, rollouts until 0.95, seconds."""
    folder = Path(tempfile.mkdtemp(dir=work))
    seeds = ["--seed", str(1234 + seed), "--rollout-seed", str(42 + seed)]
    command = ["miles", *arguments, "--preset", "reverse", "--eval-interval", "25", *seeds, "--run-dir", str(folder / "run")]
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_SECONDS)
    seconds = time.monotonic() - began
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    found = [(int(row["rollout_id"]) + 1, row["eval/reverse"]) for row in rows if "eval/reverse" in row]
    return found[-1][1], next((step for step, value in found if value >= 0.95), None), seconds


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    work = arguments.work or Path(tempfile.mkdtemp())
    print("| run | seed | greedy accuracy | rollouts to 0.95 | seconds |\n|---|---|---|---|---|", flush=True)
    for name, command in commands().items():
        if arguments.only and name not in arguments.only:
            continue
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            value, steps, seconds = run(command, seed, work)
            print(f"| {name} | {1234 + seed} | {value:.3f} | {steps or '–'} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
