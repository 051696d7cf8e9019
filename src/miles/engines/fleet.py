"""Several engines as one: requests go where the fewest are in flight, steering goes to all, and a lost engine's work goes on.

An engine that breaks off, or does not acknowledge what the others did, is taken out: its connections are closed and its
requests are asked again elsewhere. Whoever restarts it gives it back with ``admit``, which brings it to the current weights
before it serves.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from miles.engines.client import EngineClient, EngineUnreachableError
from miles.engines.wire import Answer, GenerateRequest, PauseMode
from miles.errors import EngineError

T = TypeVar("T")
MOST_BREAKS = 3
PROBE_SECONDS = 10.0
Load = Callable[[EngineClient], Awaitable[None]]
"""Brings one engine to the weights that are published now."""


class EngineFleet:
    """Implements ``wire.EngineApi`` over one or more clients, which it closes.

    recovers: lost engines come back through ``admit``, so requests wait for one when there is none left.
    steering: held by whoever changes the engines' weights, so that no engine joins half-way.
    """

    def __init__(self, clients: Sequence[EngineClient], *, recovers: bool = False) -> None:
        if not clients:
            raise EngineError("A fleet needs at least one engine.")
        self.steering = asyncio.Lock()
        self._recovers = recovers
        self._serving = dict(enumerate(clients))
        self._num_in_flight: Counter[int] = Counter()
        self._owner: dict[str, int] = {}
        self._losses: dict[int, asyncio.Future[str]] = {}
        self._has_engine = asyncio.Event()
        self._has_engine.set()
        self._load: Load | None = None

    @property
    def clients(self) -> tuple[EngineClient, ...]:
        """Those that serve, in order of their numbers."""
        return tuple(self._serving[number] for number in sorted(self._serving))

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        """Answers in the order of the requests; all go to the engine with the fewest requests in flight.

        Raises:
            EngineError: the engine refused or failed; carries its own words. One that broke off is raised only when no other
                is left and none comes back.
        """
        num_breaks = 0
        while True:
            await self._has_engine.wait()
            number = min(self._serving, key=lambda number: (self._num_in_flight[number], number))
            client = self._serving[number]
            try:
                return await self._generate_on(number, requests)
            except EngineUnreachableError as error:
                num_breaks += 1
                if num_breaks < MOST_BREAKS and await client.alive(PROBE_SECONDS):
                    continue  # a connection broke, not the engine
                await self.take_out(number, str(error))
                if not self._serving and not self._recovers:
                    raise

    async def _generate_on(self, number: int, requests: Sequence[GenerateRequest]) -> list[Answer]:
        self._num_in_flight[number] += len(requests)
        self._owner.update((request.rid, number) for request in requests)
        try:
            return await self._serving[number].generate(requests)
        finally:
            self._num_in_flight[number] -= len(requests)
            for request in requests:
                self._owner.pop(request.rid, None)

    async def abort(self, rids: Sequence[str]) -> None:
        """End requests now; their ``generate`` returns what was sampled. Unknown ids are ignored."""
        by_engine: dict[int, list[str]] = {}
        for rid in rids:
            if self._owner.get(rid) in self._serving:
                by_engine.setdefault(self._owner[rid], []).append(rid)
        await asyncio.gather(*(self._serving[number].abort(theirs) for number, theirs in by_engine.items()))

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

    async def update_weights_from_disk(self, path: str, version: int, *, flushes: bool) -> None:
        """Load a folder as ``version`` everywhere; an engine that comes back later loads it too, so it stays until the next."""
        await self._on_all(lambda client: client.update_weights_from_disk(path, version, flushes=flushes))
        self._load = lambda client: client.update_weights_from_disk(path, version, flushes=True)

    async def weight_versions(self) -> list[int]:
        """The version of every engine, in order."""
        return await self._on_all(lambda client: client.weight_version())

    async def healthy(self) -> bool:
        """Whether every engine answers and can sample."""
        return all(await self._on_all(lambda client: client.healthy()))

    async def close(self) -> None:
        """Close the connections to all."""
        await asyncio.gather(*(client.close() for client in self.clients))

    async def take_out(self, number: int, reason: str) -> None:
        """An engine is lost: close its connections, so that its requests are asked again elsewhere."""
        client = self._serving.pop(number, None)
        if client is None:
            return
        if not self._serving and self._recovers:
            self._has_engine.clear()
        loss = self._loss(number)
        if not loss.done():
            loss.set_result(reason)
        await client.close()

    async def lost(self, number: int) -> str:
        """Wait until an engine is taken out; why."""
        return await asyncio.shield(self._loss(number))

    async def admit(self, number: int, client: EngineClient) -> None:
        """An engine came back: it gets the published weights, then it serves.

        Raises:
            EngineError: it did not take them.
        """
        async with self.steering:
            if self._load is not None:
                try:
                    await self._load(client)
                except EngineError:
                    await client.close()
                    raise
            self._losses.pop(number, None)
            self._num_in_flight[number] = 0
            self._serving[number] = client
            self._has_engine.set()

    def _loss(self, number: int) -> "asyncio.Future[str]":
        if number not in self._losses:
            self._losses[number] = asyncio.get_running_loop().create_future()
        return self._losses[number]

    async def _on_all(self, call: Callable[[EngineClient], Awaitable[T]]) -> list[T]:
        """Ask all at once and wait for all, so that no engine is left half-way when another fails.

        Where lost engines come back, those that fail are taken out, unless all of those that can be reached refuse.
        """
        asked = {number: self._serving[number] for number in sorted(self._serving)}
        results = await asyncio.gather(*(call(client) for client in asked.values()), return_exceptions=True)
        failures = {number: result for number, result in zip(asked, results, strict=True) if isinstance(result, BaseException)}
        refusals = [failure for failure in failures.values() if not isinstance(failure, EngineUnreachableError)]
        others = [failure for failure in refusals if not isinstance(failure, EngineError)]
        if failures and (others or not self._recovers or (refusals and len(failures) == len(asked))):
            raise next(iter(others or refusals or failures.values()))
        for number, failure in failures.items():
            await self.take_out(number, str(failure))
        return [result for result in results if not isinstance(result, BaseException)]
