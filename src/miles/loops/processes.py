"""The processes of a run: engines and trainer as Ray actors in their seats, started together, watched, ended together."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import ray

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.config.options.engine import EngineOptions
from miles.config.options.placement import Colocated
from miles.engines.external import REMEDY, check_external_engines, full_address, leave_running
from miles.engines.fleet import EngineFleet
from miles.engines.routed_fleet import ROUTER, RoutedFleet
from miles.loops.engine_processes import EngineProcess, EngineStarter, most_in_flight, new_client
from miles.loops.router_process import RouterStarter
from miles.loops.supervisor import Limits, Supervisor, end
from miles.loops.turns import EngineTurns
from miles.placement.cluster import Cluster
from miles.placement.logs import log_output
from miles.policy.client import PolicyClient, start_policy
from miles.tracking.cpu_clocks import ENGINES, POLICY


@dataclass(frozen=True, slots=True)
class Processes:
    """What the loop talks to, and the tasks that end when one of them is lost for good.

    turns: where policy and engines share their devices.
    eval_engines: those that evaluate and do nothing else; None where there are none.
    pids: of the processes whose CPU time the trace keeps, by role, all on this node; servers of sglang are not among them.
    """

    policy: PolicyClient
    engines: EngineFleet
    eval_engines: EngineFleet | None
    deaths: list["asyncio.Task[None]"]
    turns: EngineTurns | None = None
    pids: Mapping[str, Sequence[int]] = field(default_factory=dict)


@asynccontextmanager
async def processes(
    config: AnyConfig, derived: Derived, cluster: Cluster, logs: Path, say: Callable[[str], None]
) -> AsyncIterator[Processes]:
    """Start every process of the run; none is left when the context ends, however it ends.

    Raises:
        EngineError, PolicyError: one of them did not start; with its last words.
    """
    async with (
        policy_ranks(config, derived, cluster, logs) as policy,
        beside_engines(policy, config, derived, cluster, logs, say) as running,
    ):
        yield running


@asynccontextmanager
async def policy_ranks(config: AnyConfig, derived: Derived, cluster: Cluster, logs: Path) -> AsyncIterator[PolicyClient]:
    """The processes of policy and critic, begun to start; none is left when the context ends."""
    seats = [cluster.options("rank", rank) for rank in range(derived.num_ranks)]
    critic_seats = [cluster.options("critic", rank) for rank in range(derived.num_critic_ranks)]
    policy = start_policy(config, derived, seats, logs.parent / "failed", critic_seats)
    try:
        for name, actor in policy.processes.items():
            log_output(actor, logs / f"{name}.log")
        yield policy
    finally:
        for actor in policy.processes.values():
            ray.kill(actor)


@asynccontextmanager
async def beside_engines(
    policy: PolicyClient, config: AnyConfig, derived: Derived, cluster: Cluster, logs: Path, say: Callable[[str], None]
) -> AsyncIterator[Processes]:
    """Engines and router, started while the policy starts; none is left when the context ends."""
    deaths: list[asyncio.Task[None]] = []
    others: list[asyncio.Task[None]] = []
    starter, routers = EngineStarter(config, derived, cluster, logs), RouterStarter(config, derived, logs)
    try:
        await give_up_devices(config, policy, starter)
        router = asyncio.create_task(routers.start()) if derived.has_router else None
        try:
            _, (fleet, engines), eval_engines = await asyncio.gather(
                policy.info(), fleet_of(config, derived, starter, say), starting_eval_engines(derived, starter)
            )
        except BaseException:
            await end([router] if router else [])
            raise
        for note in policy.notes:
            say(note)
        eval_fleet = None
        try:
            limits = limits_of(config.engine)
            supervisor = Supervisor(fleet, starter, limits, say)
            deaths += [asyncio.create_task(supervisor.keep(engine.number, engine), name=f"keep {engine}") for engine in engines]
            deaths += [asyncio.create_task(group.watch(), name=f"watch {group.who}") for group in policy.groups]
            others += [asyncio.create_task(tell_loss(fleet, number, say)) for number in range(len(fleet.clients)) if not engines]
            eval_fleet = kept_fleet(eval_engines, starter, config.engine, say, deaths) if eval_engines else None
            if router is not None:
                stands = await router
                await stands.join(fleet)
                keeping = Supervisor(fleet, routers, limits, say).keep(ROUTER, stands)
                deaths.append(asyncio.create_task(keeping, name="keep router"))
            measured = [engine.actor for engine in engines if derived.engine == "embedded"]
            pids = await pids_here({POLICY: policy.actors, ENGINES: measured})
            yield Processes(policy, fleet, eval_fleet, deaths, turns_of(config, fleet, policy), pids)
        finally:
            await end([*deaths, *others])
            if not engines:
                for note in await leave_running(fleet.clients):
                    say(note)
            await asyncio.gather(*(each.close() for each in (fleet, eval_fleet) if each))
    finally:
        await routers.end()
        await starter.end()


async def pids_here(actors_of: Mapping[str, Sequence[Any]]) -> dict[str, list[int]]:
    """The processes of each role's actors; only of roles that are whole and on this node, where alone clocks can be read."""
    here, found = ray.get_runtime_context().get_node_id(), {}
    for role, actors in actors_of.items():
        with suppress(ray.exceptions.RayError):  # one has ended: whoever watches it says so, or starts it again
            places = await asyncio.gather(*(actor.__ray_call__.remote(node_and_pid) for actor in actors))
            if places and all(node == here for node, _ in places):
                found[role] = [pid for _, pid in places]
    return found


def other_children(pids: Mapping[str, Sequence[int]]) -> list[int]:
    """Processes that this one started, or that they started, beside those of the roles."""
    known = {pid for theirs in pids.values() for pid in theirs}
    return [child.pid for child in psutil.Process().children(recursive=True) if child.pid not in known]


def node_and_pid(_actor: object) -> tuple[str, int]:
    """Runs inside an actor."""
    return ray.get_runtime_context().get_node_id(), os.getpid()


async def give_up_devices(config: AnyConfig, policy: PolicyClient, starter: EngineStarter) -> None:
    """Where engines share the policy's devices, they start when it has left them."""
    if not isinstance(config.placement, Colocated):
        return
    await policy.info()
    await starter.share_devices(policy.actors)
    if config.placement.offload_train:
        await policy.offload()


def turns_of(config: AnyConfig, fleet: EngineFleet, policy: PolicyClient) -> EngineTurns | None:
    """How engines and policy share devices; None where each has its own."""
    placement = config.placement
    if not isinstance(placement, Colocated):
        return None
    timeout = config.engine.update_weights_timeout_seconds
    return EngineTurns(fleet, policy, placement.offload_rollout, placement.offload_train, timeout)


async def fleet_of(
    config: AnyConfig, derived: Derived, starter: EngineStarter, say: Callable[[str], None]
) -> tuple[EngineFleet, Sequence[EngineProcess]]:
    """The engines of a run as a fleet, and those of them that were started here.

    Raises:
        EngineError: one did not start; or of the user's own cannot be reached or serves another model.
    """
    options = config.engine
    build = RoutedFleet if derived.has_router else EngineFleet
    if options.rollout_external_engine_addrs:
        addresses = [full_address(address) for address in options.rollout_external_engine_addrs]
        clients = [new_client(options, address) for address in addresses]
        fleet = build(clients, max_in_flight=most_in_flight(options), remedy=REMEDY)
        try:
            for note in await check_external_engines(fleet.clients, config.model.hf_checkpoint.absolute()):
                say(note)
        except BaseException:
            await fleet.close()
            raise
        return fleet, ()
    engines = await asyncio.gather(*(starter.start(number) for number in range(derived.num_engines)))
    recovers = options.engine_max_restarts > 0
    clients = [engine.client for engine in engines]
    return build(clients, recovers=recovers, max_in_flight=most_in_flight(options)), engines


async def starting_eval_engines(derived: Derived, starter: EngineStarter) -> list[EngineProcess]:
    """Start the engines for evaluation alone; they are numbered after the others.

    Raises:
        EngineError: one did not start.
    """
    numbers = range(derived.num_engines, derived.num_engines + derived.num_eval_engines)
    return list(await asyncio.gather(*(starter.start(number) for number in numbers)))


def kept_fleet(
    engines: Sequence[EngineProcess],
    starter: EngineStarter,
    options: EngineOptions,
    say: Callable[[str], None],
    deaths: list["asyncio.Task[None]"],
) -> EngineFleet:
    """Engines that serve together, each watched by a task among ``deaths``."""
    clients, recovers = [engine.client for engine in engines], options.engine_max_restarts > 0
    most, first = most_in_flight(options), engines[0].number
    fleet = EngineFleet(clients, recovers=recovers, max_in_flight=most, first_number=first)
    supervisor = Supervisor(fleet, starter, limits_of(options), say)
    deaths += [asyncio.create_task(supervisor.keep(engine.number, engine), name=f"keep {engine}") for engine in engines]
    return fleet


async def tell_loss(fleet: EngineFleet, number: int, say: Callable[[str], None]) -> None:
    """Say it when a server of the user's is left out."""
    address = fleet.clients[number].address
    reason = await fleet.lost(number)
    say(f"{address} is left out from now on: {reason.splitlines()[0]}")


def limits_of(options: EngineOptions) -> Limits:
    """When an engine of the run is given up."""
    return Limits(options.engine_max_restarts, options.rollout_health_check_interval, options.rollout_health_check_timeout)
