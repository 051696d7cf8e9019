"""The dry run: who sits where, who waits for whom, how many steps, and what is written; nothing is started.

Imports the user's code, because a path that cannot be imported fails here and not after minutes; neither torch nor
Ray is imported by miles itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from miles.config.commands import SftConfig
from miles.config.derived import sends_adapters_alone, values_of
from miles.config.fit import Fit, Machine, fits_of, warnings_of_fit
from miles.config.memory import Memory, estimate
from miles.config.options.placement import Colocated
from miles.config.options.rollout import FullyAsync
from miles.config.resolution import Resolution
from miles.config.seating import Seat, map_lines, seats_of
from miles.config.user_code import UserCode, check_user_code
from miles.config.work import Work, point_lines, points, spell_points, work_lines, work_of

Lines = tuple[str, ...]
WAYS = {
    "disk": "through a folder",
    "tensor": "through memory that engines map",
    "broadcast": "over a process group with each engine",
}
NO_ESTIMATE = "no estimate: the model's config.json does not tell its size"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its lines."""

    heading: str
    lines: Lines


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do.

    seats: every trainer rank, then a critic's own, then every engine that is started.
    external_engines: addresses of servers that are used instead.
    router: the policy of the router before the engines; ``none`` without one.
    work, points: ``amounts`` in words.
    memory: None where the model does not tell its size.
    fits: places of the run against the memory they have, as far as that is known.
    warnings: what cannot be, by the estimate.
    """

    schedule: Lines
    seats: tuple[Seat, ...]
    external_engines: tuple[str, ...]
    router: str
    amounts: Work
    work: Lines
    points: Lines
    memory: Memory | None
    fits: tuple[Fit, ...]
    warnings: Lines
    writes: Lines
    user_code: tuple[UserCode, ...]

    def sections(self) -> tuple[Section, ...]:
        """The plan in the order in which one reads it."""
        code = tuple(f"{code.option}: {code.path}{code.signature}" for code in self.user_code)
        return (
            Section("schedule", self.schedule),
            Section("placement", tuple(self._placement())),
            Section("work", self.work),
            Section("evaluation and checkpoints", self.points),
            Section("memory", memory_lines(self.memory, self.fits)),
            Section("written", self.writes),
            Section("your code", code or ("none: everything is built in",)),
        )

    def _placement(self) -> Iterator[str]:
        yield from map_lines(self.seats)
        yield from (f"external engine {address}" for address in self.external_engines)
        if self.router != "none":
            yield f"sglang's router before the engines, policy {self.router}"

    def data(self) -> dict[str, Any]:
        """The plan for programs."""
        return {
            "schedule": list(self.schedule),
            "seats": [asdict(seat) for seat in self.seats],
            "external_engines": list(self.external_engines),
            "router": self.router,
            "work": self.amounts.data(),
            "memory_bytes": asdict(self.memory) if self.memory else None,
            "fits": [asdict(fit) | {"is_enough": fit.is_enough} for fit in self.fits],
            "warnings": list(self.warnings),
            "writes": list(self.writes),
            "user_code": [asdict(code) for code in self.user_code],
        }

    def lines(self) -> Lines:
        """The plan as plain text."""
        return tuple(text for part in self.sections() for text in (part.heading, *(f"  {line}" for line in part.lines)))


def memory_lines(memory: Memory | None, fits: Sequence[Fit]) -> Lines:
    """The estimate, and whether it fits."""
    return (*memory.lines(), *(fit.line() for fit in fits)) if memory else (NO_ESTIMATE,)


def make_plan(resolution: Resolution, machine: Machine) -> Plan:
    """The plan of a configuration on a machine.

    Raises:
        ConfigError: user code could not be imported or does not take what it is called with.
    """
    work, memory = work_of(resolution), estimate(resolution)
    fits = fits_of(memory, resolution, machine) if memory else ()
    return Plan(
        schedule=tuple(_schedule(resolution)),
        seats=seats_of(resolution),
        external_engines=resolution.config.engine.rollout_external_engine_addrs,
        router=resolution.derived.router_policy,
        amounts=work,
        work=tuple(work_lines(resolution, work)),
        points=tuple(point_lines(resolution, work)),
        memory=memory,
        fits=fits,
        warnings=tuple(warnings_of_fit(fits, resolution)),
        writes=tuple(_writes(resolution)),
        user_code=check_user_code(resolution),
    )


def _schedule(resolution: Resolution) -> Iterator[str]:
    derived, rollout = resolution.derived, resolution.config.rollout
    continues = getattr(rollout, "partial_rollout", False)
    interval = derived.update_weights_interval
    published = "after every rollout" if interval == 1 else f"after every {interval} rollouts"
    if derived.schedule == "sync":
        yield "sync: the policy waits for rollout k, the engines wait for step k"
        kept = ", but for what continued answers got from earlier weights" if continues else ""
        yield f"staleness 0: every token is sampled from the weights it trains{kept}"
    elif derived.schedule == "one_step_off":
        yield "one-step-off: rollout k+1 runs while step k trains; each waits for the slower one"
        kept = ", more for continued answers" if continues else ""
        yield f"staleness at most 1 weight version{kept}"
    else:
        yield "fully async: a producer keeps the engines full, the policy drains a buffer; nobody waits for the other"
        yield f"staleness at most {derived.staleness_bound} weight versions"
    if isinstance(rollout, FullyAsync):
        yield f"held by `{rollout.staleness_control}`; the policy waits only where a group would miss its deadline"
    what = "adapters" if sends_adapters_alone(values_of(resolution.config)) else "weights"
    yield f"{what} are published {published}, {WAYS[derived.update_weight_transfer_mode]}"
    if isinstance(resolution.config.placement, Colocated):
        yield "policy and engines share their devices: engines are paused and give their memory back while the policy trains"
    if derived.num_critic_ranks:
        yield "the critic has ranks of its own: policy and critic take their steps at the same time"
    if derived.num_steps_per_rollout > 1:
        steps = derived.num_steps_per_rollout
        yield f"{steps} optimiser steps on each rollout: the last one is {steps - 1} updates away from the first"


def _writes(resolution: Resolution[Any]) -> Iterator[str]:
    config = resolution.config
    folder = config.run.run_dir
    yield f"run folder: {folder or 'a new one under runs'}" + (", resumed if it holds a run" if folder else "")
    yield "in it: config.toml, config.json, metrics.jsonl, trace.json, last_start.json, logs"
    yield f"checkpoints: {config.model.save or 'checkpoints in the run folder'}"


@dataclass(frozen=True, slots=True)
class SftPlan:
    """What ``miles sft`` would do."""

    ranks: tuple[str, ...]
    work: Lines
    memory: Memory | None
    fits: tuple[Fit, ...]
    warnings: Lines
    writes: Lines

    def lines(self) -> Lines:
        """The plan as plain text."""
        parts = {
            "placement": self.ranks,
            "work": self.work,
            "memory": memory_lines(self.memory, self.fits),
            "written": self.writes,
        }
        return tuple(text for heading, lines in parts.items() for text in (heading, *(f"  {line}" for line in lines)))

    def data(self) -> dict[str, Any]:
        """The plan for programs."""
        return asdict(self)


def make_sft_plan(resolution: Resolution[SftConfig], machine: Machine) -> SftPlan:
    """The plan of a configuration of ``miles sft`` on a machine."""
    memory = estimate(resolution)
    fits = fits_of(memory, resolution, machine) if memory else ()
    derived, evaluation = resolution.derived, resolution.config.evaluation
    seats = [Seat(f"rank {rank}", *_place(rank, resolution)) for rank in range(derived.num_ranks)]
    first = () if evaluation.skip_eval_before_train else (0,)
    evaluations = (*first, *points(evaluation.eval_interval, derived.num_rollout))
    names = ", ".join(name for name, _ in evaluation.eval_prompt_data)
    measured = f"measures the loss on {names} {spell_points(evaluations)}" if names else "no evaluation: no --eval-prompt-data"
    passes = derived.num_rollout * derived.global_batch_size / derived.num_prompts
    return SftPlan(
        ranks=tuple(map_lines(seats)),
        work=(
            f"{derived.num_rollout} optimiser steps of {derived.global_batch_size} examples: {passes:.3g} passes over "
            f"{derived.num_prompts}",
            f"examples of up to {derived.max_context_len} tokens",
            measured,
            f"saves a checkpoint {spell_points(tuple(points(resolution.config.model.save_interval, derived.num_rollout)))}",
        ),
        memory=memory,
        fits=fits,
        warnings=tuple(warnings_of_fit(fits, resolution)),
        writes=tuple(_writes(resolution)),
    )


def _place(rank: int, resolution: Resolution[SftConfig]) -> tuple[int, tuple[int, ...]]:
    """Node and devices of a rank."""
    size = resolution.config.placement.actor_num_gpus_per_node
    return (0, ()) if resolution.derived.device == "cpu" else (rank // size, (rank % size,))
