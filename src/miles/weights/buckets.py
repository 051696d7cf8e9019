"""The policy as bucketed transports need it, and the order of calls that all of them have: begin, buckets, end."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from miles.engines.transfer.specs import TensorSpec
from miles.engines.weight_calls import Landing, begin_weight_update, end_weight_update
from miles.weights.transport import Engines

Specs = tuple[TensorSpec, ...]
Send = Callable[[int, Landing], Awaitable[None]]


class WeightSource(Protocol):
    """The policy's sending end; see ``miles.policy.weights_client``."""

    async def stage(self, version: int, bucket_bytes: int, *, shared: bool = False, on_device: bool = False) -> list[Specs]:
        """Get ready to send; what each bucket holds."""
        ...

    async def keep_only(self, version: int) -> None:
        """Forget the versions before."""
        ...

    async def payloads(self, version: int, bucket: int, count: int) -> list[str]:
        """Handles to a bucket in shared memory."""
        ...

    async def device_payloads(self, bucket: int) -> list[str]:
        """A handle to each rank's own copy on its GPU."""
        ...

    async def listen(self, group: str, host: str, size: int, timeout_seconds: float) -> int:
        """Begin a group; the port."""
        ...

    async def join(self, group: str, size: int, backend: str, timeout_seconds: float) -> None:
        """Return when the engine has joined."""
        ...

    async def leave(self, group: str) -> None:
        """End a group."""
        ...

    async def broadcast(self, version: int, bucket: int, groups: Sequence[str]) -> dict[str, str]:
        """Send a bucket; the words of groups that failed."""
        ...


def num_bytes(buckets: Sequence[Specs]) -> int:
    """Of all tensors."""
    return sum(spec.num_bytes for specs in buckets for spec in specs)


async def send_buckets(count: int, version: int, engines: Engines, send: Send, *, flushes: bool) -> None:
    """Begin, send every bucket, end; the version, and the flush, come with the last bucket."""
    await engines.on_all(begin_weight_update)
    for index in range(count - 1):
        await send(index, Landing())
    await send(count - 1, Landing(version, flushes))
    await engines.on_all(end_weight_update)
