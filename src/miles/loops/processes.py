"""The processes of a run: engines and trainer as Ray actors in their seats, started together, watched, ended together."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.config.options.engine import EngineOptions
from miles.engines.client import EngineClient
from miles.engines.external import check_external_engines, full_address
from miles.engines.fleet import EngineFleet
from miles.loops.engine_processes import STEERING_SHARE, EngineStarter
from miles.loops.supervisor import Limits, Supervisor, end
from miles.placement.cluster import Cluster
from miles.placement.logs import log_output
from miles.policy.client import PolicyClient, start_policy


@dataclass(frozen=True, slots=True)
class Processes:
    """What the loop talks to, and the tasks that end when one of them is lost for good."""

    policy: PolicyClient
    engines: EngineFleet
    deaths: list["asyncio.Task[None]"]


@asynccontextmanager
async def processes(
    config: AnyConfig, derived: Derived, cluster: Cluster, logs: Path, say: Callable[[str], None]
) -> AsyncIterator[Processes]:
    """Start every process of the run; none is left when the context ends, however it ends.

    Raises:
        EngineError, PolicyError: one of them did not start; with its last words.
    """
    actors: list[Any] = []
    deaths: list[asyncio.Task[None]] = []
    starter = EngineStarter(config, derived, cluster, logs)
    try:
        seats = [cluster.options(rank) for rank in range(derived.num_ranks)]
        policy = start_policy(config, derived, seats, logs.parent / "failed")
        actors += policy.actors
        for rank, actor in enumerate(policy.actors):
            log_output(actor, logs / f"rank-{rank}.log")
        if config.engine.rollout_external_engine_addrs:
            _, fleet = await asyncio.gather(policy.info(), external_fleet(config, say))
        else:
            starting = [starter.start(number) for number in range(derived.num_engines)]
            _, engines = await asyncio.gather(policy.info(), asyncio.gather(*starting))
            fleet = EngineFleet([engine.client for engine in engines], recovers=config.engine.engine_max_restarts > 0)
            supervisor = Supervisor(fleet, starter, limits_of(config.engine), say)
            deaths += [asyncio.create_task(supervisor.keep(engine.number, engine), name=f"keep {engine}") for engine in engines]
        deaths.append(asyncio.create_task(policy.watch(), name="watch the policy"))
        try:
            yield Processes(policy, fleet, deaths)
        finally:
            await end(deaths)
            await fleet.close()
    finally:
        await starter.end()
        for actor in actors:
            ray.kill(actor)


async def external_fleet(config: AnyConfig, say: Callable[[str], None]) -> EngineFleet:
    """The user's own servers, looked at first.

    Raises:
        EngineError: one cannot be reached or serves another model.
    """
    timeout = STEERING_SHARE * config.engine.update_weights_timeout_seconds
    addresses = [full_address(address) for address in config.engine.rollout_external_engine_addrs]
    fleet = EngineFleet([EngineClient(address, control_timeout_seconds=timeout) for address in addresses])
    try:
        for note in await check_external_engines(fleet.clients, config.model.hf_checkpoint.absolute()):
            say(note)
    except BaseException:
        await fleet.close()
        raise
    return fleet


def limits_of(options: EngineOptions) -> Limits:
    """When an engine of the run is given up."""
    return Limits(options.engine_max_restarts, options.rollout_health_check_interval, options.rollout_health_check_timeout)
