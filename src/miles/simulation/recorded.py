"""Speeds and lengths of a recorded run: ``metrics.jsonl`` says how long everything took, ``trace.json`` who computed meanwhile.

A synchronous run is needed: there rollout and training do not overlap, so that each has its own time. What it knows depends on
the engines: embedded ones count their steps, so that prompts, recomputation and shared cores can be simulated (``computed``);
of others only the clock is known (``clocked``).
"""

import statistics
from dataclasses import replace
from pathlib import Path

from miles.config.resolution import Resolution
from miles.errors import ConfigError, Problem
from miles.simulation.pass_cost import fit
from miles.simulation.simulate import simulate
from miles.simulation.trace_file import RecordedTrace, read_trace
from miles.simulation.workload import Overheads, Speeds, Workload, from_histogram
from miles.tracking.cpu_clocks import DRIVER, ENGINES, OTHERS, POLICY
from miles.tracking.metrics_file import read_rows
from miles.types import Metrics

HISTOGRAM = "rollout/kept/response_len/"
LEAST_STEPS = 5


def recorded_workload(folder: Path, resolution: Resolution, slots: int) -> Workload:
    """The workload of a synchronous run with the options of ``resolution``, whose schedule is sync.

    Raises:
        ConfigError: the folder holds no synchronous run of at least five steps.
    """
    rows = [row for row in read_rows(folder / "metrics.jsonl") if "perf/train_time" in row][1:]
    if len(rows) < LEAST_STEPS:
        raise _refused(folder, f"holds {len(rows)} trained rollouts after the first, {LEAST_STEPS} are needed")
    if any(key.startswith("rollout/fully_async/") for key in rows[0]) or max(r["rollout/staleness/max"] for r in rows) > 0:
        raise _refused(folder, "is no synchronous run: its rollouts and training steps overlap")
    trace = read_trace(folder / "trace.json")
    lengths = from_histogram(histogram_of(rows), statistics.fmean(row["rollout/response_len/mean"] for row in rows))
    unscaled = Workload(lengths, clocked_speeds(rows), slots, resolution.config.data.rollout_max_response_len)
    if resolution.derived.device == "cpu" and trace.knows((DRIVER, POLICY, ENGINES), LEAST_STEPS):
        return computed(trace, rows, resolution, unscaled)
    return clocked(rows, resolution, unscaled)


def clocked_speeds(rows: list[Metrics]) -> Speeds:
    """What the clock says of training and updates, and decode steps of one second."""
    paused = median_of(rows, "perf/engines_paused_time")
    return Speeds(
        decode_seconds=1.0,
        decode_seconds_per_sample=0.0,
        train_seconds=median_of(rows, "perf/train_time"),
        train_tokens=max(median_of(rows, "rollout/num_tokens"), 1.0),
        export_seconds=max(0.0, median_of(rows, "perf/update_weights_time") - paused),
        pause_seconds=paused,
    )


def clocked(rows: list[Metrics], resolution: Resolution, unscaled: Workload) -> Workload:
    """The decode step is the one that makes the simulated rollout as long as the recorded one."""
    seconds = median_of(rows, "perf/rollout_time") / rollout_seconds(unscaled, resolution, len(rows))
    return replace(unscaled, speeds=replace(unscaled.speeds, decode_seconds=seconds))


def computed(trace: RecordedTrace, rows: list[Metrics], resolution: Resolution, clocked: Workload) -> Workload:
    """CPU seconds of every part, on the cores of the recorded machine.

    What is left of a span's length when its CPU seconds are taken off is waiting, which no core is needed for; what is left of
    the rollout is found by simulating it without.
    """
    derived, work = resolution.derived, trace.engine_work
    cost = fit(work)
    train, export = (trace.cpu(kind, POLICY) / derived.num_ranks for kind in ("step", "stage"))
    update = trace.cpu("publish", ENGINES) / derived.num_engines
    in_rollout, in_export, in_update = (trace.cpu(kind, DRIVER) for kind in ("rollout", "stage", "publish"))
    of_step = trace.cpu_from_one_to_the_next("rollout", DRIVER)
    overheads = Overheads(
        driver_group_seconds=in_rollout / resolution.config.data.rollout_batch_size,
        driver_train_seconds=max(0.0, of_step - in_rollout - in_export - in_update),
        driver_export_seconds=in_export,
        driver_update_seconds=in_update,
        answer_seconds=answer_seconds(trace),
        others_seconds=trace.cpu_from_one_to_the_next("rollout", OTHERS),
        train_wait_seconds=max(0.0, trace.seconds("step") - trace.cpu("step", DRIVER) - train),
        export_wait_seconds=max(0.0, trace.seconds("stage") - in_export - export),
        update_wait_seconds=max(0.0, trace.seconds("publish") - in_update - update),
    )
    speeds = Speeds(
        decode_seconds=cost.pass_seconds,
        decode_seconds_per_sample=cost.row_seconds + cost.token_seconds,
        train_seconds=train,
        train_tokens=clocked.speeds.train_tokens,
        export_seconds=export,
        pause_seconds=update,
        token_seconds=cost.token_seconds,
    )
    prompt_tokens = sum(each["num_prompt_tokens"] for each in work) / max(1, sum(each["num_prompts"] for each in work))
    workload = replace(clocked, speeds=speeds, overheads=overheads, prompt_tokens=prompt_tokens, cores=trace.cores)
    waiting = median_of(rows, "perf/rollout_time") - rollout_seconds(workload, resolution, len(rows))
    return replace(workload, overheads=replace(overheads, group_wait_seconds=max(0.0, waiting)))


def answer_seconds(trace: RecordedTrace) -> float:
    """CPU seconds of engines for an answer, beside their steps: from the first update to the last span, without updates."""
    updates = trace.spans["publish"]
    first = min(updates)
    spans = [span for of_kind in trace.spans.values() for span in of_kind.values()]
    used = max(span.cpu_ended[ENGINES] for span in spans) - updates[first].cpu_ended[ENGINES]
    updating = sum(span.cpu_of(ENGINES) for number, span in updates.items() if number != first)
    stepping, answers = (sum(work[name] for work in trace.engine_work) for name in ("seconds", "num_answers"))
    return max(0.0, float((used - updating - stepping) / answers))


def rollout_seconds(workload: Workload, resolution: Resolution, num_steps: int) -> float:
    """How long a synchronous rollout takes by itself."""
    overheads = workload.overheads
    speeds = replace(workload.speeds, train_seconds=0.0, export_seconds=0.0, pause_seconds=0.0)
    alone = Overheads(driver_group_seconds=overheads.driver_group_seconds, answer_seconds=overheads.answer_seconds)
    lone = replace(workload, speeds=speeds, overheads=alone)
    return simulate(resolution, lone, num_engines=resolution.derived.num_engines, num_steps=num_steps).step_seconds


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
