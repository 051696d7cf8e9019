"""The dry run: who sits where, who waits for whom, how many steps, and what is written; nothing is started.

Imports the user's code, because a path that cannot be imported fails here and not after minutes; neither torch nor
Ray is imported by miles itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from miles.config.derived import Derived
from miles.config.options.rollout import FullyAsync
from miles.config.resolution import Resolution
from miles.config.user_code import UserCode, check_user_code

Lines = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seat:
    """One process of the run.

    name: ``rank 0``, ``engine 1``.
    device: ``GPU 0`` in the order of placement, or ``a CPU process``.
    """

    name: str
    device: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its lines."""

    heading: str
    lines: Lines


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do.

    seats: every trainer rank, then every engine.
    """

    schedule: Lines
    seats: tuple[Seat, ...]
    work: Lines
    points: Lines
    writes: Lines
    user_code: tuple[UserCode, ...]

    def sections(self) -> tuple[Section, ...]:
        """The plan in the order in which one reads it."""
        seats = tuple(f"{seat.name}: {seat.device}" for seat in self.seats)
        code = tuple(f"{code.option}: {code.path}{code.signature}" for code in self.user_code)
        return (
            Section("schedule", self.schedule),
            Section("placement", seats),
            Section("work", self.work),
            Section("evaluation and checkpoints", self.points),
            Section("written", self.writes),
            Section("your code", code or ("none: everything is built in",)),
        )

    def lines(self) -> Lines:
        """The plan as plain text."""
        return tuple(text for part in self.sections() for text in (part.heading, *(f"  {line}" for line in part.lines)))


def make_plan(resolution: Resolution) -> Plan:
    """The plan of a configuration.

    Raises:
        ConfigError: user code could not be imported or does not take what it is called with.
    """
    return Plan(
        schedule=tuple(_schedule(resolution)),
        seats=tuple(_seats(resolution)),
        work=tuple(_work(resolution)),
        points=tuple(_points(resolution)),
        writes=tuple(_writes(resolution)),
        user_code=check_user_code(resolution),
    )


def _schedule(resolution: Resolution) -> Iterator[str]:
    derived, rollout = resolution.derived, resolution.config.rollout
    interval = derived.update_weights_interval
    published = "after every rollout" if interval == 1 else f"after every {interval} rollouts"
    if derived.schedule == "sync":
        yield "sync: the policy waits for rollout k, the engines wait for step k"
        yield "staleness 0: every token is sampled from the weights it trains"
    elif derived.schedule == "one_step_off":
        yield "one-step-off: rollout k+1 runs while step k trains; each waits for the slower one"
        yield "staleness at most 1 weight version"
    else:
        yield "fully async: a producer keeps the engines full, the policy drains a buffer; nobody waits for the other"
        yield f"staleness at most {derived.staleness_bound} weight versions"
    if isinstance(rollout, FullyAsync):
        yield f"held by `{rollout.staleness_control}`; the policy waits only where a group would miss its deadline"
    yield f"weights are published {published}"
    if derived.num_steps_per_rollout > 1:
        steps = derived.num_steps_per_rollout
        yield f"{steps} optimiser steps on each rollout: the last one is {steps - 1} updates away from the first"


def _seats(resolution: Resolution) -> Iterator[Seat]:
    derived, placement = resolution.derived, resolution.config.placement
    size = placement.rollout_num_gpus_per_engine
    for rank in range(derived.num_ranks):
        node = rank // placement.actor_num_gpus_per_node
        place = f" on node {node}" if placement.actor_num_nodes > 1 else ""
        yield Seat(f"rank {rank}", _device(derived, rank, 1) + place)
    for engine in range(derived.num_engines):
        first = derived.num_ranks + engine * size
        yield Seat(f"engine {engine}", f"{_device(derived, first, size)}, {derived.engine}")


def _device(derived: Derived, first: int, count: int) -> str:
    if derived.device == "cpu":
        return "a CPU process"
    return f"GPU {first}" if count == 1 else f"GPUs {first}–{first + count - 1}"


def _work(resolution: Resolution) -> Iterator[str]:
    data, derived = resolution.config.data, resolution.derived
    groups, size = data.rollout_batch_size, data.n_samples_per_prompt
    total = derived.num_rollout * groups
    yield f"each rollout: {groups} groups × {size} samples = {groups * size} samples"
    yield f"each optimiser step: {derived.global_batch_size} samples; {derived.num_steps_per_rollout} per rollout"
    stop = f"num_epoch = {data.num_epoch}" if data.num_epoch is not None else f"num_rollout = {data.num_rollout}"
    yield f"stops after {derived.num_rollout} rollouts ({stop}): {derived.num_optimizer_steps} optimiser steps"
    passes = total / derived.num_prompts
    yield f"prompts: {total} groups over {derived.num_prompts} prompts, {passes:.3g} passes"
    yield f"lengths: prompt up to {derived.max_prompt_len}, answer up to {data.rollout_max_response_len} tokens"


def _points(resolution: Resolution) -> Iterator[str]:
    evaluation, model = resolution.config.evaluation, resolution.config.model
    last = resolution.derived.num_rollout
    if not evaluation.eval_prompt_data:
        yield "no evaluation: there is no --eval-prompt-data"
    else:
        names = ", ".join(name for name, _ in evaluation.eval_prompt_data)
        start = () if evaluation.skip_eval_before_train else ("before the first rollout",)
        yield f"evaluates {names}: " + ", ".join((*start, *_every(evaluation.eval_interval, last)))
    yield "saves a checkpoint: " + ", ".join(_every(model.save_interval, last))


def _every(interval: int | None, last: int) -> Iterator[str]:
    if interval is not None and interval < last:
        yield f"after every {interval} rollouts"
    yield f"after the last, {last}"


def _writes(resolution: Resolution) -> Iterator[str]:
    config = resolution.config
    folder = config.run.run_dir
    yield f"run folder: {folder or 'a new one under runs'}" + (", resumed if it holds a run" if folder else "")
    yield "in it: config.toml, metrics.jsonl, trace.json, logs"
    yield f"checkpoints: {config.model.save or 'checkpoints in the run folder'}"
