"""Speeds and lengths of a recorded run: its ``metrics.jsonl`` says how long everything took.

A synchronous run is needed: there rollout and training do not overlap, so that each has its own time.
"""

import statistics
from dataclasses import replace
from pathlib import Path

from miles.config.resolution import Resolution
from miles.errors import ConfigError, Problem
from miles.simulation.simulate import simulate
from miles.simulation.workload import Speeds, Workload, from_histogram
from miles.tracking.metrics_file import read_rows
from miles.types import Metrics

HISTOGRAM = "rollout/kept/response_len/"
LEAST_STEPS = 5


def recorded_workload(folder: Path, resolution: Resolution, slots: int) -> Workload:
    """The workload of a synchronous run with the options of ``resolution``, whose schedule is sync.

    The decode step is the one that makes the simulated rollout as long as the recorded one.

    Raises:
        ConfigError: the folder holds no synchronous run of at least five steps.
    """
    rows = [row for row in read_rows(folder / "metrics.jsonl") if "perf/train_time" in row][1:]
    if len(rows) < LEAST_STEPS:
        raise _refused(folder, f"holds {len(rows)} trained rollouts after the first, {LEAST_STEPS} are needed")
    if any(key.startswith("rollout/fully_async/") for key in rows[0]) or max(r["rollout/staleness/max"] for r in rows) > 0:
        raise _refused(folder, "is no synchronous run: its rollouts and training steps overlap")
    paused = median_of(rows, "perf/engines_paused_time")
    tokens = median_of(rows, "rollout/num_tokens")
    speeds = Speeds(
        decode_seconds=1.0,
        decode_seconds_per_sample=0.0,
        train_seconds=median_of(rows, "perf/train_time"),
        train_tokens=max(tokens, 1.0),
        export_seconds=max(0.0, median_of(rows, "perf/update_weights_time") - paused),
        pause_seconds=paused,
    )
    lengths = from_histogram(histogram_of(rows), statistics.fmean(row["rollout/response_len/mean"] for row in rows))
    unscaled = Workload(lengths, speeds, slots, resolution.config.data.rollout_max_response_len)
    idle = replace(speeds, train_seconds=0.0, export_seconds=0.0, pause_seconds=0.0)
    steps = simulate(
        resolution, replace(unscaled, speeds=idle), num_engines=resolution.derived.num_engines, num_steps=len(rows)
    ).step_seconds
    return replace(unscaled, speeds=replace(speeds, decode_seconds=median_of(rows, "perf/rollout_time") / steps))


def histogram_of(rows: list[Metrics]) -> dict[int, float]:
    """Lower edge → samples, over all rows."""
    counts: dict[int, float] = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith(HISTOGRAM):
                floor = int(key.removeprefix(HISTOGRAM))
                counts[floor] = counts.get(floor, 0.0) + value
    return counts


def median_of(rows: list[Metrics], key: str) -> float:
    """Median over the rows that have the metric; 0 where none has."""
    return statistics.median([row[key] for row in rows if key in row] or [0.0])


def _refused(folder: Path, why: str) -> ConfigError:
    return ConfigError([Problem("trace", str(folder), "--trace", why, "Give the run folder of a `miles train` run")])
