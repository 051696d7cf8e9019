"""The three transports around a model of this process: what trainer ranks do in a run, without Ray."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from miles.engines.client import EngineClient
from miles.policy.export import export_weights
from miles.policy.ranks import OneRank
from miles.policy.sender import WeightSender
from miles.policy.weights_client import PolicyWeights
from miles.weights.broadcast import BroadcastTransport
from miles.weights.disk import DiskTransport
from miles.weights.publish import Publisher
from miles.weights.tensor import TensorTransport
from miles.weights.transport import OneEngine, Transport

from .engine_fixtures import Http, load_reference

WAYS = ("disk", "tensor", "broadcast")
BUCKET_BYTES = 8192  # the small models have several buckets
LOOPBACK = "127.0.0.1"


class Policy:
    """A model that can be published; ``become`` is its training step."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = load_reference(folder)
        self.sender = WeightSender(self.model, OneRank())
        self.weights = PolicyWeights(self._ask)

    @torch.no_grad()
    def become(self, other: Any) -> None:
        """Take the weights of another model."""
        for name, tensor in self.model.state_dict().items():
            tensor.copy_(other.state_dict()[name])

    async def export_weights(self, folder: Path) -> None:
        """As the actor."""
        await asyncio.to_thread(export_weights, self.model, folder)

    async def _ask(self, doing: str, step: str, *arguments: Any, first_only: bool = False, **options: Any) -> list[Any]:
        return [await asyncio.to_thread(getattr(self.sender, step), *arguments, **options)]


def transport_of(way: str, policy: Policy, folder: Path, bucket_bytes: int = BUCKET_BYTES) -> Transport:
    """One of ``WAYS``; ``folder`` is for disk."""
    if way == "disk":
        return DiskTransport(policy, folder)
    if way == "tensor":
        return TensorTransport(policy.weights, bucket_bytes, 1, on_device=False)
    return BroadcastTransport(
        policy.weights, bucket_bytes, 1, backend="gloo", host=LOOPBACK, run=folder.name, timeout_seconds=20.0
    )


@dataclass
class Fleet(OneEngine):
    """One engine as a publisher sees the fleet."""

    client: EngineClient

    def __post_init__(self) -> None:
        super().__init__(0, self.client)
        self.steering = asyncio.Lock()
        self.reload: Callable[..., Any] | None = None

    async def pause(self, mode: Any) -> None:
        await self.client.pause(mode)

    async def continue_generation(self) -> None:
        await self.client.continue_generation()

    def reload_with(self, load: Callable[..., Any]) -> None:
        self.reload = load


@asynccontextmanager
async def publishing(way: str, http: Http, policy: Policy, folder: Path, mode: Any = "retract") -> AsyncIterator[Publisher]:
    """A publisher to one server; its connections end with the context."""
    from miles.clock import WallClock

    async with EngineClient(http.address) as client:
        publisher = Publisher(transport_of(way, policy, folder), Fleet(client), mode, 30.0, WallClock())
        yield publisher
        assert await publisher.part() == []
        for group in list(policy.sender._groups):
            policy.sender.leave(group)
