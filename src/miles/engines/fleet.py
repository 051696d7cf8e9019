"""Several engines as one: requests go where the fewest are in flight, steering goes to all."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from miles.engines.client import EngineClient
from miles.engines.wire import Answer, GenerateRequest, PauseMode
from miles.errors import EngineError

T = TypeVar("T")


class EngineFleet:
    """Implements ``wire.EngineApi`` over one or more clients, which it closes."""

    def __init__(self, clients: Sequence[EngineClient]) -> None:
        if not clients:
            raise EngineError("A fleet needs at least one engine.")
        self.clients = tuple(clients)
        self._num_in_flight = [0] * len(self.clients)
        self._owner: dict[str, int] = {}

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        """Answers in the order of the requests; all go to the engine with the fewest requests in flight.

        Raises:
            EngineError: the engine refused or failed; carries its own words.
        """
        engine = min(range(len(self.clients)), key=self._num_in_flight.__getitem__)
        self._num_in_flight[engine] += len(requests)
        self._owner.update((request.rid, engine) for request in requests)
        try:
            return await self.clients[engine].generate(requests)
        finally:
            self._num_in_flight[engine] -= len(requests)
            for request in requests:
                self._owner.pop(request.rid, None)

    async def abort(self, rids: Sequence[str]) -> None:
        """End requests now; their ``generate`` returns what was sampled. Unknown ids are ignored."""
        by_engine: dict[int, list[str]] = {}
        for rid in rids:
            if rid in self._owner:
                by_engine.setdefault(self._owner[rid], []).append(rid)
        await asyncio.gather(*(self.clients[engine].abort(theirs) for engine, theirs in by_engine.items()))

    async def abort_all(self) -> None:
        """End every request on every engine."""
        await self._on_all(lambda client: client.abort_all())

    async def pause(self, mode: PauseMode) -> None:
        """Stop decoding everywhere."""
        await self._on_all(lambda client: client.pause(mode))

    async def continue_generation(self) -> None:
        """Decode again everywhere."""
        await self._on_all(lambda client: client.continue_generation())

    async def flush_cache(self) -> None:
        """Drop cached prefixes everywhere."""
        await self._on_all(lambda client: client.flush_cache())

    async def update_weights_from_disk(self, path: str, version: int) -> None:
        """Load a folder as ``version`` everywhere."""
        await self._on_all(lambda client: client.update_weights_from_disk(path, version))

    async def weight_versions(self) -> list[int]:
        """The version of every engine, in order."""
        return await self._on_all(lambda client: client.weight_version())

    async def healthy(self) -> bool:
        """Whether every engine answers and can sample."""
        return all(await self._on_all(lambda client: client.healthy()))

    async def close(self) -> None:
        """Close the connections to all."""
        await self._on_all(lambda client: client.close())

    async def _on_all(self, call: Callable[[EngineClient], Awaitable[T]]) -> list[T]:
        """Ask all at once and wait for all, so that no engine is left half-way when another fails."""
        results = await asyncio.gather(*(call(client) for client in self.clients), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise failures[0]
        return [result for result in results if not isinstance(result, BaseException)]
