"""Staleness bound, staleness control and correction on the `reverse` preset: what each costs and what it learns.

    python bench/staleness.py [--only bounds controls corrections] [--rollouts 150] [--seed 0]

bounds: ``--max-weight-staleness`` 1, 2, 4, 8 under `pace`. controls: `pace`, `mask` and `filter` beside each other under a
tight bound, with answers that are long against a step. corrections: every control with every ``--off-policy-correction``.
Prints the rows of the tables in docs/modes.md as they come, each from one real run, and above each table the options that
all its runs share. Step times are medians; a shared machine drifts, so compare inside one table.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MILES = Path(sys.executable).with_name("miles")
FULLY = ["train-async", "--fully-async", "--preset", "reverse", "--eval-interval", "10"]
BOUNDS = (1, 2, 4, 8)
CONTROLS = ("pace", "mask", "filter")
CORRECTIONS = ("none", "rollout-logprobs", "tis", "icepop", "decoupled")
TIGHT = ["--max-weight-staleness", "1", "--rollout-batch-size", "8", "--engine-max-running-requests", "64"]
REACHED = 0.95
WARM_UP = 10
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. steps: rows of trained rollouts; evals: of evaluations."""

    steps: Rows
    evals: Rows

    def accuracy(self) -> str:
        """Greedy accuracy on the held-out strings at the end."""
        return f"{self.evals[-1]['eval/reverse']:.3f}"

    def rollouts_to_reach(self) -> str:
        """Rollouts until an evaluation first reached 0.95."""
        found = (int(row["rollout_id"]) + 1 for row in self.evals if row["eval/reverse"] >= REACHED)
        return str(next(found, "–"))

    def step_ms(self) -> str:
        """Median step time."""
        return f"{statistics.median(row['perf/step_time'] for row in self.steps[WARM_UP:]) * 1e3:.0f}"

    def staleness(self) -> str:
        """Mean and maximum over the groups consumed."""
        means = [row["rollout/staleness/mean"] for row in self.steps[WARM_UP:]]
        return f"{statistics.fmean(means):.2f} / {max(row['rollout/staleness/max'] for row in self.steps):.0f}"

    def discarded(self) -> str:
        """Groups rejected as too old, of those that came back from the engines."""
        rejected = sum(row["rollout/rejected/num_groups"] for row in self.steps)
        trained = self.steps[-1]["ledger/trained"]
        return f"{rejected:.0f} of {rejected + trained:.0f}"

    def masked(self) -> str:
        """Share of response tokens that were masked as too old."""
        return f"{statistics.fmean(row.get('rollout/masked/share', 0.0) for row in self.steps):.1%}"

    def lengths(self) -> str:
        """Mean length of kept and of discarded answers, in tokens, from histograms by powers of two."""
        kept, rejected = (self._mean_length(f"rollout/{name}/response_len/") for name in ("kept", "rejected"))
        return f"{kept} / {rejected}"

    def _mean_length(self, prefix: str) -> str:
        counts = [(int(k.removeprefix(prefix)), v) for row in self.steps for k, v in row.items() if k.startswith(prefix)]
        number = sum(count for _, count in counts)
        return f"{sum(max(1.5 * floor - 0.5, 0) * count for floor, count in counts) / number:.1f}" if number else "–"


COLUMNS: dict[str, Callable[[Outcome], str]] = {
    "greedy accuracy": Outcome.accuracy,
    f"rollouts to {REACHED}": Outcome.rollouts_to_reach,
    "step ms": Outcome.step_ms,
    "staleness mean / max": Outcome.staleness,
    "discarded groups": Outcome.discarded,
    "masked tokens": Outcome.masked,
    "mean length kept / discarded": Outcome.lengths,
}


def run(flags: list[str], work: Path) -> Outcome:
    """One real run."""
    folder = Path(tempfile.mkdtemp(dir=work))
    command = [str(MILES), *FULLY, *flags, "--run-dir", str(folder / "run")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return Outcome([row for row in rows if "ledger/trained" in row], [row for row in rows if "eval/reverse" in row])


def tables() -> Iterator[tuple[str, list[str], dict[str, list[str]]]]:
    """Name, the flags that all its runs share, and row → flags."""
    yield "bounds", [], {f"S = {bound}": ["--max-weight-staleness", str(bound)] for bound in BOUNDS}
    yield "controls", TIGHT, {f"`{control}`": ["--staleness-control", control] for control in CONTROLS}
    pairs = [(control, correction) for correction in CORRECTIONS for control in CONTROLS]
    flags = {
        f"`{correction}`, `{control}`": ["--off-policy-correction", correction, "--staleness-control", control]
        for control, correction in pairs
    }
    yield "corrections", TIGHT, flags


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["bounds", "controls", "corrections"])
    parser.add_argument("--rollouts", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path)
    given = parser.parse_args()
    work = given.work or Path(tempfile.mkdtemp())
    every = ["--num-rollout", str(given.rollouts), "--seed", str(given.seed), "--rollout-seed", str(given.seed)]
    for name, shared, rows in tables():
        if name not in given.only:
            continue
        print(f"\n{name}: miles {' '.join([*FULLY, *shared, *every])} …\n")
        print(f"| | {' | '.join(COLUMNS)} |\n{'|---' * (len(COLUMNS) + 1)}|", flush=True)
        for row, flags in rows.items():
            outcome = run([*every, *shared, *flags], work)
            print(f"| {row} | {' | '.join(column(outcome) for column in COLUMNS.values())} |", flush=True)


if __name__ == "__main__":
    main()
