"""Weights over the network: a process group of the policy's rank 0 and one engine's ranks, over gloo or NCCL.

Each engine has a group of its own, so one that is lost breaks nobody else's, and one that comes back meets nobody but rank 0.
Rank 0 sends into all groups at once.
"""

import asyncio
from itertools import count
from typing import Any

from miles.engines.client import EngineClient
from miles.engines.weight_calls import (
    Landing,
    destroy_weights_update_group,
    init_weights_update_group,
    update_weights_from_distributed,
)
from miles.errors import EngineError, PolicyError
from miles.weights.buckets import Specs, WeightSource, num_bytes, send_buckets
from miles.weights.transport import Engines

PART_SECONDS = 5.0  # an engine that is still receiving does not answer


class BroadcastTransport:
    """Groups that last for as long as their engine.

    host: where rank 0 listens.
    run: makes the names of this run's groups its own.
    """

    needs_policy = True

    def __init__(
        self, source: WeightSource, bucket_bytes: int, ranks_per_engine: int, *, backend: str, host: str, run: str,
        timeout_seconds: float,
    ) -> None:  # fmt: skip
        self._source, self._bucket_bytes, self._size = source, bucket_bytes, ranks_per_engine + 1
        self._backend, self._host, self._timeout_seconds = backend, host, timeout_seconds
        self._groups: dict[EngineClient, str] = {}
        self._names = (f"miles-{run}-{number}" for number in count())
        self._buckets: list[Specs] = []

    async def stage(self, version: int) -> int:
        """Gather the weights into rank 0's host memory."""
        self._buckets = await self._source.stage(version, self._bucket_bytes)
        return num_bytes(self._buckets)

    async def join(self, engines: Engines) -> None:
        """A group with every engine that has none; groups of engines that are gone end."""
        serving = set(engines.serving.values())
        for client in [client for client in self._groups if client not in serving]:
            await self._source.leave(self._groups.pop(client))
        await self._join_all(engines)

    async def update(self, version: int, engines: Engines, *, flushes: bool) -> None:
        """Send bucket after bucket."""
        await self._join_all(engines)

        async def send(index: int, landing: Landing) -> None:
            await self._send(version, index, engines, landing)

        await send_buckets(len(self._buckets), version, engines, send, flushes=flushes)

    async def settle(self, version: int) -> None:
        """Free what was staged before."""
        await self._source.keep_only(version)

    async def part(self, engines: Engines) -> list[str]:
        """Have engines leave the groups; the policy's ends go with its processes."""
        groups = {client: self._groups.pop(client) for client in engines.serving.values() if client in self._groups}
        results = await asyncio.gather(*(left(client, name) for client, name in groups.items()))
        return [note for note in results if note]

    async def _join_all(self, engines: Engines) -> None:
        if any(client not in self._groups for client in engines.serving.values()):
            meeting = asyncio.Lock()  # rank 0 takes one call at a time
            await engines.on_all(lambda client: self._meet(client, meeting))

    async def _meet(self, client: EngineClient, meeting: asyncio.Lock) -> None:
        """Rank 0 and an engine join a new group; each would wait for the other."""
        if client in self._groups:
            return
        async with meeting:
            name, limit = next(self._names), self._timeout_seconds
            port = await self._source.listen(name, self._host, self._size, limit)
            asked = init_weights_update_group(client, name, self._host, port, self._size, self._backend)
            engine = asyncio.create_task(asked)
            policy = asyncio.create_task(self._source.join(name, self._size, self._backend, limit))
            try:
                await both(engine, policy)
            except PolicyError as error:
                raise EngineError(f"{client.address} did not join the policy's group: {error}") from error
            self._groups[client] = name

    async def _send(self, version: int, index: int, engines: Engines, landing: Landing) -> None:
        """One bucket: engines receive while rank 0 sends."""
        groups = {client: self._groups[client] for client in engines.serving.values()}

        def receive(client: EngineClient) -> "asyncio.Future[None]":
            call = update_weights_from_distributed(client, self._buckets[index], groups[client], landing)
            return asyncio.ensure_future(call)

        received = asyncio.ensure_future(engines.on_all(receive))
        sent = asyncio.ensure_future(self._source.broadcast(version, index, list(groups.values())))
        await both(received, sent)
        failed = {groups[client]: client for client in engines.serving.values() if groups.get(client) in sent.result()}
        for group, client in failed.items():
            raise EngineError(f"{client.address} did not take bucket {index}: {sent.result()[group]}")


async def left(client: EngineClient, group: str) -> str:
    """Have an engine leave a group; why it did not, a sentence."""
    try:
        async with asyncio.timeout(PART_SECONDS):
            await destroy_weights_update_group(client, group)
    except TimeoutError:
        return f"{client.address} did not leave the process group {group} within {PART_SECONDS:g} s."
    except EngineError as error:
        return f"{client.address} did not leave the process group {group}: {error}"
    return ""


async def both(first: "asyncio.Future[Any]", second: "asyncio.Future[Any]") -> None:
    """Wait for both; where one fails the other waits for it in vain and is given up.

    Raises:
        BaseException: what failed first.
    """
    try:
        await asyncio.wait([first, second], return_when=asyncio.FIRST_EXCEPTION)
        for task in (first, second):
            if task.done():
                task.result()
    finally:
        first.cancel()
        second.cancel()
