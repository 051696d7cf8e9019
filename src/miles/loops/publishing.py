"""The publisher of a run, from its options: transport, check, and turns where engines and policy share devices."""

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from miles.clock import Clock
from miles.config.derived import sends_adapters_alone, values_of
from miles.config.resolution import Resolution
from miles.engines.wire import PauseMode
from miles.loops.engine_processes import STEERING_SHARE
from miles.loops.processes import Processes
from miles.weights.broadcast import BroadcastTransport
from miles.weights.check import WeightCheck
from miles.weights.disk import AdapterTransport, DiskTransport
from miles.weights.publish import Publisher
from miles.weights.tensor import TensorTransport
from miles.weights.transport import Transport


@asynccontextmanager
async def publisher_of(
    resolution: Resolution, running: Processes, folder: Path, mode: PauseMode, clock: Clock, say: Callable[[str], None]
) -> AsyncIterator[Publisher]:
    """What publishes this run's weights; servers of the user's, which go on, are left as they were found."""
    publisher = make_publisher(resolution, running, folder, mode, clock)
    try:
        yield publisher
    finally:
        if resolution.config.engine.rollout_external_engine_addrs:
            for note in await publisher.part():
                say(note)


def make_publisher(resolution: Resolution, running: Processes, folder: Path, mode: PauseMode, clock: Clock) -> Publisher:
    """What publishes this run's weights; ``folder`` is for those that travel as files."""
    options = resolution.config.engine
    check = WeightCheck(running.policy.weights) if options.check_weight_update else None
    timeout = options.update_weights_timeout_seconds
    return Publisher(make_transport(resolution, running, folder), running.engines, mode, timeout, clock, check, running.turns)


def make_transport(resolution: Resolution, running: Processes, folder: Path) -> Transport:
    """The way that ``update_weight_transfer_mode`` stands for."""
    options, derived = resolution.config.engine, resolution.derived
    on_gpus = derived.device == "cuda" and derived.engine == "sglang"
    ranks_per_engine = resolution.config.placement.rollout_num_gpus_per_engine if on_gpus else 1
    source, size = running.policy.weights, options.update_weight_buffer_size
    if sends_adapters_alone(values_of(resolution.config)):
        return AdapterTransport(running.policy, folder)
    if derived.update_weight_transfer_mode == "disk":
        return DiskTransport(running.policy, folder)
    if derived.update_weight_transfer_mode == "tensor":
        return TensorTransport(source, size, ranks_per_engine, on_device=on_gpus and running.turns is not None)
    return BroadcastTransport(
        source, size, ranks_per_engine,
        backend="nccl" if on_gpus else "gloo", host=node_address(), run=uuid.uuid4().hex[:8],
        timeout_seconds=STEERING_SHARE * options.update_weights_timeout_seconds,
    )  # fmt: skip


def node_address() -> str:
    """Where the policy's rank 0 listens: on the node of the run, by the address that its cluster knows."""
    import ray

    return str(ray.util.get_node_ip_address())
