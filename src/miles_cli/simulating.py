"""``miles simulate``: what each schedule would come to, in seconds of a virtual clock; starts nothing."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from miles.errors import ConfigError, Problem
from miles_cli.invocation import Typed
from miles_cli.showing import sources_of

if TYPE_CHECKING:
    from miles.config.resolution import Resolution
    from miles.simulation.schedules import Split
    from miles.simulation.simulate import Forecast
    from miles.simulation.workload import Workload

NAMES = {"sync": "sync", "one_step_off": "one step off", "fully_async": "fully async"}
COLUMNS = ("schedule", "step s", "tokens/s", "engine idle", "policy idle", "staleness mean", "max", "discarded", "masked")


@dataclass(frozen=True, slots=True)
class Asked:
    """What was typed beside the options of a run; None where nothing was.

    decode_seconds: of one decode step; train_seconds: of one training step on a rollout of average length.
    cores: shared by all processes; without it those of a recorded machine, or one for each.
    """

    trace: Path | None
    lengths: str | None
    train_seconds: float | None
    decode_seconds: float | None
    engines: int | None
    accelerators: int | None
    steps: int
    cores: int | None = None


def simulate_command(typed: Typed, preset: str | None, config: list[str] | None, asked: Asked, *, as_json: bool) -> None:
    """Simulate the three schedules and print them side by side.

    Raises:
        ConfigError: an option or the workload cannot be used.
    """
    from miles.simulation.schedules import best_split, resolutions
    from miles.simulation.simulate import simulate

    found = resolutions(sources_of(typed, preset, config))
    workload = workload_of(asked, found["sync"])
    if asked.cores is not None:
        workload = replace(workload, cores=asked.cores)
    forecasts = [
        simulate(each, workload, num_engines=asked.engines or each.derived.num_engines, num_steps=asked.steps)
        for each in found.values()
    ]
    splits = []
    if asked.accelerators is not None:
        splits = [best_split(each, workload, accelerators=asked.accelerators, num_steps=asked.steps) for each in found.values()]
    if as_json:
        rows = {"schedules": [asdict(each) for each in forecasts], "best_splits": [asdict(split) for split in splits]}
        typer.echo(json.dumps(rows, indent=2))
        return
    typer.echo("\n".join([*table([row_of(each) for each in forecasts]), *map(split_line, splits)]))


def workload_of(asked: Asked, sync: "Resolution") -> "Workload":
    """Answers and speeds: recorded ones, or those that were typed.

    Raises:
        ConfigError: there is neither a trace nor everything that stands in for one.
    """
    from miles.simulation.recorded import recorded_workload
    from miles.simulation.workload import Speeds, Workload, parse_lengths

    data, slots = sync.config.data, sync.config.engine.engine_max_running_requests
    if asked.trace is not None:
        return recorded_workload(asked.trace, sync, slots)
    if asked.lengths is None or asked.train_seconds is None:
        missing = "lengths" if asked.lengths is None else "train_seconds"
        remedy = "Pass --trace RUN, or --lengths and --train-seconds"
        raise ConfigError([Problem(missing, "", "", "is not set, and there is no recorded run", remedy)])
    lengths = parse_lengths(asked.lengths)
    workload = Workload(
        lengths, Speeds(asked.decode_seconds or 0.02, 0.0, asked.train_seconds, 1.0), slots, data.rollout_max_response_len
    )
    return scaled(workload, data.rollout_batch_size * data.n_samples_per_prompt)


def scaled(workload: "Workload", samples_per_rollout: int) -> "Workload":
    """The workload with ``train_seconds`` for a rollout of average length."""
    import random

    rng = random.Random(0)
    average = sum(workload.draw(rng) for _ in range(4096)) / 4096
    return replace(workload, speeds=replace(workload.speeds, train_tokens=average * samples_per_rollout))


def row_of(forecast: "Forecast") -> tuple[str, ...]:
    """A forecast as words."""
    return (
        NAMES[forecast.schedule],
        f"{forecast.step_seconds:.3g}",
        f"{forecast.tokens_per_second:.4g}",
        f"{forecast.engine_idle:.0%}",
        f"{forecast.policy_idle:.0%}",
        f"{forecast.mean_staleness:.2f}",
        f"{forecast.max_staleness:.0f}",
        str(forecast.discarded_groups),
        f"{forecast.masked_share:.1%}",
    )


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Columns under their headings, with two blanks between."""
    widths = [max(len(row[place]) for row in [COLUMNS, *rows]) for place in range(len(COLUMNS))]
    return ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in [COLUMNS, *rows]]


def split_line(split: "Split") -> str:
    """The best split of a schedule in a sentence."""
    total = split.num_ranks + split.num_engines
    return (
        f"{NAMES[split.forecast.schedule]}: of {total} accelerators, {split.num_ranks} for the policy and {split.num_engines} "
        f"for engines give {split.forecast.step_seconds:.3g} s a step"
    )
