"""Ray: started for this run or joined, with one placement group that holds every seat.

A Ray started here is told of as many logical CPUs as the run has processes, so that two cores can hold four ranks and
two engines; a cluster that is joined must have what is asked for.
"""

import logging
import os
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from miles.errors import MachineError
from miles.placement.map import Role, Seat, total_resources

READY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """A placement group and the seats in it.

    started_here: whether this process started Ray and has to end it.
    """

    group: PlacementGroup
    seats: list[Seat]
    started_here: bool

    def options(self, role: Role, number: int) -> dict[str, Any]:
        """``.options(**…)`` of the actor that takes a seat."""
        index = next(index for index, seat in enumerate(self.seats) if (seat.role, seat.number) == (role, number))
        resources = self.seats[index].resources
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self.group, placement_group_bundle_index=index, placement_group_capture_child_tasks=False
        )
        return {"num_cpus": resources["CPU"], "num_gpus": resources.get("GPU", 0), "scheduling_strategy": strategy}

    def close(self) -> None:
        """Give the seats back and end a Ray that was started here."""
        if not ray.is_initialized():
            return
        remove_placement_group(self.group)
        if self.started_here:
            ray.shutdown()


def open_cluster(wanted: list[Seat], ray_address: str | None) -> Cluster:
    """Start or join Ray and reserve the seats.

    Raises:
        MachineError: Ray cannot be reached, or the cluster lacks what is asked for.
    """
    started_here = not ray.is_initialized() and ray_address is None
    if not ray.is_initialized():
        connect(wanted, ray_address)
    try:
        refuse_too_small(wanted)
        return Cluster(reserve(wanted), wanted, started_here)
    except MachineError:
        if started_here:
            ray.shutdown()
        raise


def reserve(wanted: list[Seat]) -> PlacementGroup:
    """A placement group on the node where miles runs: engines and policy meet on its loopback and in its shared memory.

    Raises:
        MachineError: the seats are not free, or not all on this node.
    """
    here = ray.get_runtime_context().get_node_id()
    group = placement_group([seat.resources for seat in wanted], strategy="STRICT_PACK", _soft_target_node_id=here)
    ready = group.wait(READY_SECONDS)
    nodes = set(placement_group_table(group)["bundles_to_node_id"].values()) if ready else set()
    if nodes == {here}:
        return group
    remove_placement_group(group)
    if ready:
        raise MachineError(
            f"{words(total_resources(wanted))} are not free on the node where miles runs, only on another one. Runs over several "
            "nodes are not available yet: start miles on the node that has them."
        )
    raise MachineError(
        f"Ray did not reserve {words(total_resources(wanted))} on one node within {READY_SECONDS:.0f} s; free now: "
        f"{words(ray.available_resources())}. End what holds them or ask for less."
    )


def connect(wanted: list[Seat], ray_address: str | None) -> None:
    """``ray.init`` for this run alone, or on a running cluster."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": False}
    try:
        if ray_address is not None:
            ray.init(address=ray_address, **quiet)
        else:
            cpus = max(os.cpu_count() or 1, int(total_resources(wanted)["CPU"]))
            ray.init(num_cpus=cpus, include_dashboard=False, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"--ray-address {ray_address}" if ray_address else "a local Ray"
        raise MachineError(f"cannot start on {where}: {error}. Check `ray status`, or leave --ray-address out.") from error


def refuse_too_small(wanted: list[Seat]) -> None:
    """A cluster that can never hold the run is refused now, not after a time-out."""
    has, needs = ray.cluster_resources(), total_resources(wanted)
    short = [name for name, amount in needs.items() if has.get(name, 0.0) < amount]
    if short:
        lacks = ", ".join(f"{needs[name]:g} {name} (has {has.get(name, 0.0):g})" for name in short)
        more = "--critic-num-gpus-per-node, " if any(seat.role == "critic" for seat in wanted) else ""
        raise MachineError(
            f"the run needs {lacks}. Lower {more}--actor-num-gpus-per-node or --rollout-num-gpus, or use a larger cluster."
        )


def words(resources: dict[str, float]) -> str:
    """``2 CPU, 1 GPU``."""
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items() if name in ("CPU", "GPU")) or "nothing"
