"""``--dry-run``: the plan, for people and for programs, and what a start would refuse; the exit codes are those of a start."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from miles.config.devices import find_gpus, host_memory
from miles.config.fit import Machine, machine_of, shortage
from miles.config.plan import make_plan
from miles.config.records import to_data
from miles.config.resolution import Resolution
from miles.config.sources import Sources
from miles.errors import MachineError
from miles.loops.refusals import refuse_what_a_start_would
from miles.loops.resume import look_ahead

if TYPE_CHECKING:
    from rich.console import Console


def machine_here(sources: Sources) -> Machine:
    """What a plan is held against: this machine, or GPUs as the user states them."""
    gpus = find_gpus(sources.environ) if sources.gpu_memory_gib is None else None
    return machine_of(gpus, host_memory(), sources.gpu_memory_gib)


def print_plan(resolution: Resolution, machine: Machine, console: "Console") -> None:
    """Print the plan.

    Raises:
        MilesError: a start would be refused.
    """
    refuse_what_a_start_would(resolution)
    plan = make_plan(resolution, machine)
    lines = plan.lines()
    if resumed := look_ahead(resolution):
        lines = (*lines, "resume", *(f"  {line}" for line in resumed))
    console.print("\n".join(["", "plan", *lines, ""]), markup=False, soft_wrap=True)
    print_verdict(plan.warnings, resolution, machine, console)


def print_data(resolution: Resolution, machine: Machine) -> None:
    """Print configuration and plan as one JSON object.

    Raises:
        MilesError: a start would be refused.
    """
    refuse_what_a_start_would(resolution)
    configuration = to_data(resolution.command, resolution.derived, resolution.rows, resolution.warnings)
    content = {"configuration": configuration, "plan": make_plan(resolution, machine).data(), "resume": look_ahead(resolution)}
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n")
    refuse_shortage(resolution, machine)


def refuse_early(resolution: Resolution) -> None:
    """Refuse before torch and Ray are imported what a start would refuse after that.

    Raises:
        MilesError: lines of files, the run folder, or what it was started with.
    """
    refuse_what_a_start_would(resolution)
    look_ahead(resolution)


def print_verdict(warnings: Sequence[str], resolution: Resolution[Any], machine: Machine, console: "Console") -> None:
    """Print what cannot be by the estimate, and that nothing was started.

    Raises:
        MachineError: this machine has too few GPUs.
    """
    for warning in warnings:
        console.print(f"warning: {warning}", markup=False, soft_wrap=True, style="yellow")
    refuse_shortage(resolution, machine)
    console.print("dry run: nothing was started", markup=False, soft_wrap=True)


def refuse_shortage(resolution: Resolution[Any], machine: Machine) -> None:
    """Refuse a plan for more GPUs than this machine has.

    Raises:
        MachineError: it has too few, and no cluster is joined.
    """
    if lacks := shortage(resolution, machine):
        raise MachineError(lacks)
