"""Engines as Ray actors in their seats: started, waited for, asked why they ended, and started again."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from miles.config.adapter_checks import SGLANG_LAYERS
from miles.config.commands import AnyConfig
from miles.config.derived import Derived, sends_adapters_alone, values_of
from miles.config.options.engine import EngineOptions
from miles.engines.actor import remote_engine_actor
from miles.engines.client import EngineClient
from miles.engines.fleet import EngineFleet
from miles.engines.last_lines import last_lines
from miles.engines.line import with_queue
from miles.engines.sglang_server.actor import remote_sglang_actor
from miles.engines.sglang_server.arguments import SglangOptions
from miles.engines.sglang_server.guard import remove_orphans
from miles.errors import EngineError
from miles.placement.cluster import Cluster
from miles.placement.logs import log_output

LOOPBACK = "127.0.0.1"
STOP_SECONDS = 5.0
STEERING_SHARE = 0.8  # an engine's own time limit ends before that of the whole state


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """One engine that serves: its actor, and the client that speaks to it."""

    number: int
    actor: Any
    client: EngineClient
    log: Path

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"engine {self.number}"

    async def join(self, fleet: EngineFleet) -> None:
        """Serve in the fleet again, with the published weights."""
        await fleet.admit(self.number, self.client)

    async def ended(self) -> str:
        """Wait until the engine ends; why, with the end of its log."""
        try:
            reason = await self.actor.wait.remote()
        except ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines()
            words = lines[0] if lines else type(error).__name__
            return f"{self.name} died: {words}\nThe end of {self.log}:\n{last_lines(self.log)}"
        return f"{self.name} ended: {reason or 'it was stopped'}\nThe end of {self.log}:\n{last_lines(self.log)}"

    def kill(self) -> None:
        """End the actor now, and with it everything that it started."""
        ray.kill(self.actor)


class EngineStarter:
    """Starts the engines of a run, each in its own seat."""

    def __init__(self, config: AnyConfig, derived: Derived, cluster: Cluster, logs: Path) -> None:
        self.actors: dict[int, Any] = {}
        self._shared_devices: list[str] = []
        self._config, self._derived, self._cluster, self._logs = config, derived, cluster, logs

    async def share_devices(self, ranks: Sequence[Any]) -> None:
        """Engines take the devices of the policy's ``ranks``, in order; nothing to share on a CPU."""
        if self._derived.device == "cuda":
            self._shared_devices = [device for rank in ranks for device in await rank.__ray_call__.remote(devices_of)]

    async def start(self, number: int) -> EngineProcess:
        """Start engine ``number`` and wait until it serves.

        Raises:
            EngineError: it did not start, or not in time; with its last lines.
        """
        log = self._logs / f"engine-{number}.log"
        actor = self.actors[number] = self._actor(number, log)
        log_output(actor, log)
        address = await self._address_of(number, actor, log)
        return EngineProcess(number, actor, new_client(self._config.engine, address), log)

    async def end(self) -> None:
        """Ask every engine to end, so that it can clean up; whoever has not in time, or is gone, is killed all the same."""
        asked = [asyncio.wait_for(stopping(actor), STOP_SECONDS) for actor in self.actors.values()]
        await asyncio.gather(*asked, return_exceptions=True)
        for actor in self.actors.values():
            ray.kill(actor)
        remove_orphans()

    def _actor(self, number: int, log: Path) -> Any:
        config, derived = self._config, self._derived
        seat = self._cluster.options("engine", number)
        if derived.engine == "sglang":
            host = LOOPBACK if self._cluster.started_here else None
            size = config.placement.rollout_num_gpus_per_engine
            devices = self._shared_devices[number * size : (number + 1) * size]
            options = sglang_options(config, derived, number, host, tuple(devices))
            return remote_sglang_actor(**seat).remote(options, str(log), number)
        return remote_engine_actor(**seat).remote(
            str(config.model.hf_checkpoint.absolute()),
            num_slots=config.engine.engine_max_running_requests,
            context_len=derived.max_context_len,
            dtype=config.model.dtype,
            deterministic=config.run.deterministic,
            seed=config.sampling.rollout_seed + number,
        )

    async def _address_of(self, number: int, actor: Any, log: Path) -> str:
        seconds = self._config.engine.engine_start_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                return str(await actor.start.remote())
        except TimeoutError as error:
            raise EngineError(
                f"engine {number} did not answer within {seconds:g} s; --engine-start-timeout-seconds raises the limit. "
                f"Its last lines:\n{last_lines(log)}"
            ) from error
        except ray.exceptions.RayError as error:
            raise EngineError(f"engine {number} did not start: {cause_of(error)}") from error


def new_client(options: EngineOptions, address: str) -> EngineClient:
    """Speaks to one engine, with as many connections as it may hold samples."""
    seconds = STEERING_SHARE * options.update_weights_timeout_seconds
    return EngineClient(
        address,
        control_timeout_seconds=seconds,
        prompt_timeout_seconds=options.rollout_health_check_timeout,
        max_generations=most_in_flight(options),
    )


def most_in_flight(options: EngineOptions) -> int:
    """Samples at one engine at once: what it decodes, and as many that wait there for a free slot."""
    return with_queue(options.engine_max_running_requests)


def devices_of(_actor: object) -> list[str]:
    """Runs inside an actor: the GPUs that Ray gave it."""
    return [str(device) for device in ray.get_gpu_ids()]


async def stopping(actor: Any) -> None:
    """Until an engine has ended."""
    await actor.stop.remote()


def sglang_options(
    config: AnyConfig, derived: Derived, number: int, host: str | None, devices: tuple[str, ...] = ()
) -> SglangOptions:
    """What sglang server ``number`` is started with; ``devices`` of the policy that it shares, none where it has its own."""
    return SglangOptions(
        model_path=str(config.model.hf_checkpoint.absolute()),
        device=derived.device,
        context_len=derived.max_context_len,
        max_running_requests=config.engine.engine_max_running_requests,
        num_gpus=config.placement.rollout_num_gpus_per_engine,
        dtype=config.model.dtype,
        deterministic=config.run.deterministic,
        seed=config.sampling.rollout_seed + number,
        pauses_in_place=getattr(config.rollout, "pause_generation_mode", None) == "in_place",
        host=host,
        first_port=config.engine.engine_first_port,
        shared_devices=devices,
        releases_memory=getattr(config.placement, "offload_rollout", False),
        adapter_rank=(config.lora.lora_rank or 0) if sends_adapters_alone(values_of(config)) else 0,
        adapter_targets=config.lora.lora_targets or SGLANG_LAYERS,
        extra=config.engine.sglang,
    )


def cause_of(error: BaseException) -> str:
    """What the actor itself said, without Ray's frame around it."""
    cause = getattr(error, "cause", None) or error
    return str(cause).strip() or type(cause).__name__
