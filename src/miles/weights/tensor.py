"""Weights in memory that engines of the same host map and copy: shared memory between CPUs, CUDA handles on a shared GPU."""

from collections.abc import Awaitable, Mapping, Sequence

from miles.engines.client import EngineClient
from miles.engines.weight_calls import Landing, update_weights_from_tensor
from miles.weights.buckets import Specs, WeightSource, num_bytes, send_buckets
from miles.weights.transport import Engines


class TensorTransport:
    """Handles over HTTP, data through memory.

    ranks_per_engine: each of them gets a handle of its own.
    on_device: engine n's ranks sit on the GPUs of the policy's ranks from n × ranks_per_engine on, and map their memory.
    """

    needs_policy = True

    def __init__(self, source: WeightSource, bucket_bytes: int, ranks_per_engine: int, *, on_device: bool) -> None:
        self._source, self._bucket_bytes = source, bucket_bytes
        self._ranks_per_engine, self._on_device = ranks_per_engine, on_device
        self._buckets: list[Specs] = []

    async def stage(self, version: int) -> int:
        """Gather the weights into shared memory; on GPUs only plan it."""
        self._buckets = await self._source.stage(
            version, self._bucket_bytes, shared=not self._on_device, on_device=self._on_device
        )
        return num_bytes(self._buckets)

    async def join(self, engines: Engines) -> None:
        """Nothing: a handle says where the memory is."""

    async def update(self, version: int, engines: Engines, *, flushes: bool) -> None:
        """Have engines copy bucket after bucket."""

        async def send(index: int, landing: Landing) -> None:
            handles = await self._handles(version, index, tuple(engines.serving))
            of_client = {client: handles[number] for number, client in engines.serving.items() if number in handles}

            def call(client: EngineClient) -> Awaitable[None]:
                return update_weights_from_tensor(client, of_client[client], landing)

            await engines.on_all(call)

        await send_buckets(len(self._buckets), version, engines, send, flushes=flushes)

    async def settle(self, version: int) -> None:
        """Free what was staged before."""
        await self._source.keep_only(version)

    async def part(self, engines: Engines) -> list[str]:
        """Nothing: no engine holds on to the policy."""
        return []

    async def _handles(self, version: int, bucket: int, numbers: Sequence[int]) -> Mapping[int, Sequence[str]]:
        """For each engine one handle for each of its ranks."""
        size = self._ranks_per_engine
        if self._on_device:
            of_rank = await self._source.device_payloads(bucket)
            return {number: of_rank[number * size : (number + 1) * size] for number in numbers}
        handles = await self._source.payloads(version, bucket, size * len(numbers))
        return {number: handles[place * size : (place + 1) * size] for place, number in enumerate(numbers)}
