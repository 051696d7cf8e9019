"""One set of options, three schedules: each gets the options that it has, and the best split of accelerators is searched."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from miles.config.options.rollout import FullyAsync, OneStepOff
from miles.config.registry import option_table, options_of
from miles.config.resolution import Resolution
from miles.config.resolve import resolve
from miles.config.sources import FlagValue, Sources
from miles.simulation.simulate import Forecast, simulate
from miles.simulation.workload import Workload

COMMAND_OF = {"sync": "train", "one_step_off": "train-async", "fully_async": "train-async"}


@dataclass(frozen=True, slots=True)
class Split:
    """So many accelerators for the policy and so many engines, and what comes of it."""

    num_ranks: int
    num_engines: int
    forecast: Forecast


def resolutions(sources: Sources) -> dict[str, Resolution]:
    """The configuration of every schedule, from the same sources.

    Raises:
        ConfigError: one of them could not run.
    """
    return {
        name: resolve(command, replace(sources, flags=flags_for(name, sources.flags))) for name, command in COMMAND_OF.items()
    }


def flags_for(schedule: str, flags: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    """The flags that a schedule has; a name that nobody has stays, to be refused."""
    command = COMMAND_OF[schedule]
    owned = {option.name for option in options_of(command)}
    if schedule == "one_step_off":
        owned -= FullyAsync.model_fields.keys() - OneStepOff.model_fields.keys()
    if schedule == "fully_async":
        owned -= OneStepOff.model_fields.keys() - FullyAsync.model_fields.keys()
    kept = {name: value for name, value in flags.items() if name in owned or name not in option_table()}
    return kept | ({"fully_async": FlagValue(True, "--fully-async")} if schedule == "fully_async" else {})


def best_split(resolution: Resolution, workload: Workload, *, accelerators: int, num_steps: int) -> Split:
    """The split of so many accelerators with the shortest step; a training step is taken to shrink as its ranks grow."""
    measured = resolution.derived.num_ranks
    splits = []
    for num_engines in range(1, accelerators):
        num_ranks = accelerators - num_engines
        speeds = replace(workload.speeds, train_seconds=workload.speeds.train_seconds * measured / num_ranks)
        shared = replace(workload, speeds=speeds)
        forecast = simulate(resolution, shared, num_engines=num_engines, num_steps=num_steps, num_ranks=num_ranks)
        splits.append(Split(num_ranks, num_engines, forecast))
    return min(splits, key=lambda split: split.forecast.step_seconds)
