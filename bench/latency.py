"""How long the command line takes to answer: the median of ten starts of each command, beside the limit that it is held to.

python bench/latency.py            print the medians; exit code 1 if one is above its limit
python bench/latency.py --runs 30  more starts

Wall time counts what else runs on the machine; the CPU time beside it does not.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

MILES = str(Path(sys.executable).parent / "miles")
TAB = "_MILES_COMPLETE"


class Case(NamedTuple):
    """A command and the milliseconds that it may take; ``tab`` is the line on which Tab is pressed."""

    words: tuple[str, ...]
    limit: int
    tab: tuple[str, ...] = ()


CASES = (
    Case(("--help",), 300),
    Case(("train", "--help"), 450),
    Case(("train-async", "--help"), 450),
    Case((), 300, ("--fu", "miles", "train-async")),
    Case((), 300, ("", "miles", "config", "explain")),
    Case(("config", "show", "train", "--preset", "reverse"), 500),
    Case(("config", "show", "train-async", "--fully-async", "--preset", "reverse", "--format", "json"), 500),
    Case(("config", "explain", "lr"), 500),
    Case(("config", "explain", "sglang.mem-fraction-static"), 500),
    Case(("train", "--preset", "reverse", "--dry-run"), 800),
    Case(("train-async", "--fully-async", "--preset", "reverse", "--dry-run"), 800),
)


def measure(case: Case, runs: int) -> tuple[float, float]:
    """Median wall and CPU milliseconds of a start."""
    tab = {TAB: "\n".join((case.tab[0], *case.tab[1:]))} if case.tab else {}
    environment = {**os.environ, **tab}
    wall, cpu = [], []
    for _ in range(runs):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([MILES, *case.words], capture_output=True, env=environment, check=True)
        wall.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return 1000 * statistics.median(wall), 1000 * statistics.median(cpu)


def main(runs: Annotated[int, typer.Option(min=1, help="Starts of each command.")] = 10) -> None:
    """Print the medians, and fail if one is above its limit."""
    slow = 0
    print(f"{'command':<88} {'median ms':>9} {'CPU ms':>7} {'limit':>6}")
    for case in CASES:
        wall, cpu = measure(case, runs)
        slow += wall > case.limit
        line = f"Tab after `{' '.join(case.tab[1:])} {case.tab[0]}`" if case.tab else f"miles {' '.join(case.words)}"
        print(f"{line:<88} {wall:9.0f} {cpu:7.0f} {case.limit:6}{'  too slow' if wall > case.limit else ''}", flush=True)
    raise typer.Exit(1 if slow else 0)


if __name__ == "__main__":
    typer.run(main)
