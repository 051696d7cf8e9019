"""The processes of a run: engines and trainer as Ray actors in their seats, started together, watched, ended together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.engines.actor import remote_engine_actor
from miles.engines.client import EngineClient
from miles.engines.fleet import EngineFleet
from miles.errors import EngineError
from miles.loops.watch import first_line, watch
from miles.placement.cluster import Cluster
from miles.placement.logs import last_lines, log_output
from miles.policy.client import PolicyClient, start_policy


@dataclass(frozen=True, slots=True)
class Processes:
    """What the loop talks to, and the tasks that end when one of them dies."""

    policy: PolicyClient
    engines: EngineFleet
    deaths: list["asyncio.Task[None]"]


@asynccontextmanager
async def processes(config: AnyConfig, derived: Derived, cluster: Cluster, logs: Path) -> AsyncIterator[Processes]:
    """Start every process of the run; none is left when the context ends, however it ends.

    Raises:
        EngineError, PolicyError: one of them did not start; with its last words.
    """
    actors: list[Any] = []
    deaths: list[asyncio.Task[None]] = []
    try:
        seats = [cluster.options(rank) for rank in range(derived.num_ranks)]
        policy = start_policy(config, derived, seats, logs.parent / "failed")
        actors += policy.actors
        for rank, actor in enumerate(policy.actors):
            log_output(actor, logs / f"rank-{rank}.log")
        engines = [start_engine(number, config, derived, cluster, logs) for number in range(derived.num_engines)]
        actors += engines
        starting = [address_of(number, engine, config, logs) for number, engine in enumerate(engines)]
        _, addresses = await asyncio.gather(policy.info(), asyncio.gather(*starting))
        timeout = config.engine.update_weights_timeout_seconds
        fleet = EngineFleet([EngineClient(address, control_timeout_seconds=timeout) for address in addresses])
        deaths += [watch_engine(number, engine, logs) for number, engine in enumerate(engines)]
        try:
            yield Processes(policy, fleet, deaths)
        finally:
            await fleet.close()
    finally:
        for task in deaths:
            task.cancel()
        await asyncio.gather(*deaths, return_exceptions=True)
        for actor in actors:
            ray.kill(actor)


def start_engine(number: int, config: AnyConfig, derived: Derived, cluster: Cluster, logs: Path) -> Any:
    """The actor of an engine, in its seat behind the ranks."""
    engine = remote_engine_actor(**cluster.options(derived.num_ranks + number)).remote(
        str(config.model.hf_checkpoint.absolute()),
        num_slots=config.engine.engine_max_running_requests,
        context_len=derived.max_context_len,
        deterministic=config.run.deterministic,
        seed=config.sampling.rollout_seed + number,
    )
    log_output(engine, logs / f"engine-{number}.log")
    return engine


async def address_of(number: int, engine: Any, config: AnyConfig, logs: Path) -> str:
    """Wait until an engine serves.

    Raises:
        EngineError: it did not start, or not in time.
    """
    seconds = config.engine.engine_start_timeout_seconds
    try:
        async with asyncio.timeout(seconds):
            return str(await engine.start.remote())
    except TimeoutError as error:
        raise EngineError(
            f"engine {number} did not answer within {seconds:g} s; --engine-start-timeout-seconds raises the limit. "
            f"Its last lines:\n{last_lines(logs / f'engine-{number}.log')}"
        ) from error
    except ray.exceptions.RayError as error:
        raise EngineError(f"engine {number} did not start: {cause_of(error)}") from error


def watch_engine(number: int, engine: Any, logs: Path) -> "asyncio.Task[None]":
    """A task that fails when the engine dies, with its last lines."""

    async def until_death() -> None:
        log = logs / f"engine-{number}.log"
        try:
            reason = await engine.wait.remote()
        except ray.exceptions.RayError as error:
            raise EngineError(f"engine {number} died: {first_line(error)}\nThe end of {log}:\n{last_lines(log)}") from error
        raise EngineError(f"engine {number} ended: {reason or 'it was stopped'}\nThe end of {log}:\n{last_lines(log)}")

    return watch(until_death(), f"engine {number}")


def cause_of(error: BaseException) -> str:
    """What the actor itself said, without Ray's frame around it."""
    cause = getattr(error, "cause", None) or error
    return str(cause).strip() or type(cause).__name__
