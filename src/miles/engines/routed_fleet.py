"""A fleet behind sglang's router: the router says which engine answers, the fleet which engines there are.

requests ──line──► router ──policy──► engines          pause, abort, weights: from here to each engine directly

The router tells nobody which engine it chose. So an abort goes to every engine, and after a connection behind the router broke,
every engine is asked for a sign of life; those that give none are taken out, and the request is asked again.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from miles.engines.client import EngineClient
from miles.engines.connection import BehindRouterError, EngineUnreachableError
from miles.engines.fleet import MOST_BREAKS, PROBE_SECONDS, EngineFleet, Holder, asked_again
from miles.engines.line import Line
from miles.engines.router import RouterClient
from miles.engines.wire import Answer, GenerateRequest
from miles.errors import EngineError
from miles.failures import concurrently

ROUTER = -1  # its number among the engines, for whoever waits until it is lost


@dataclass(eq=False, slots=True)
class RouterPlace:
    """The router that serves."""

    router: RouterClient
    num_in_flight: int = 0


class RoutedFleet(EngineFleet):
    """Starts without a router; ``admit_router`` gives it one, and whoever does gives it another when that one is lost."""

    def __init__(self, clients: Sequence[EngineClient], **options: Any) -> None:
        super().__init__(clients, **options)
        self._place: RouterPlace | None = None
        self._routed = Line(self._pick_router, self._tell_room)
        self._looking: asyncio.Task[None] | None = None
        self._num_lost = self._num_leaving = 0
        self._none_leaves = asyncio.Event()
        self._none_leaves.set()

    @property
    def has_room(self) -> bool:
        """Whether nobody waits for the router or an engine to have room."""
        return super().has_room and self._place is not None and not len(self._routed)

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        """Answers in the order of the requests, each asked on its own.

        Raises:
            EngineError: an engine refused or failed; carries its own words. One that broke off is raised only when no other is
                left and none comes back, or when all others give signs of life.
        """
        return await concurrently([self._through_router(request) for request in requests])

    async def _through_router(self, request: GenerateRequest) -> Answer:
        num_breaks = attempt = 0
        while True:
            place = await self._routed.enter(1)
            num_lost = self._num_lost
            try:
                return await self._ask(place.router, request, attempt)
            except BehindRouterError as error:
                await self._look_around()
                await self._none_leaves.wait()  # until then the router may choose the lost engine again
                num_breaks = num_breaks + 1 if self._num_lost == num_lost else 0
                self._raise_if_none_is_left(error)
                if num_breaks == MOST_BREAKS:
                    raise
            except EngineUnreachableError as error:
                num_breaks += 1
                if self._place is place and (num_breaks == MOST_BREAKS or not await place.router.alive(PROBE_SECONDS)):
                    await self.take_out(ROUTER, str(error))
            finally:
                self._routed.leave(place, 1)
            attempt += 1

    async def _ask(self, router: RouterClient, request: GenerateRequest, attempt: int) -> Answer:
        asked = asked_again(request, attempt)
        self._holders[request.rid] = Holder(ROUTER, asked.rid)
        try:
            answer = await router.generate(asked, max((client.published for client in self.clients), default=0))
        except asyncio.CancelledError:
            await asyncio.gather(*(client.abort_in_time([asked.rid]) for client in self.clients))
            raise
        finally:
            self._forget([request.rid])
        return replace(answer, rid=request.rid)

    async def _look_around(self) -> None:
        """Take out the engines that give no sign of life; who comes meanwhile waits for the same look."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._take_out_silent(), name="look around")
        await asyncio.shield(self._looking)

    async def _take_out_silent(self) -> None:
        asked = dict(self._serving)
        alive = await asyncio.gather(*(self._alive(seat.client) for seat in asked.values()))
        silent = [seat for seat, is_alive in zip(asked.values(), alive, strict=True) if not is_alive]
        for seat in silent:
            if self._serving.get(seat.number) is seat:
                await self.take_out(seat.number, f"{seat.client.address} broke off and gives no sign of life")

    def _pick_router(self, size: int) -> RouterPlace | None:
        """The router, if the engines behind it have room for ``size`` more samples together."""
        place, limit = self._place, self._max_in_flight * len(self._serving)
        has_room = place is not None and bool(self._serving) and place.num_in_flight + size <= limit
        return place if has_room else None

    async def abort(self, rids: Sequence[str]) -> None:
        """End requests now; their ``generate`` returns what was sampled. Unknown ids are ignored."""
        names = [self._holders[rid].rid if rid in self._holders else rid for rid in rids]
        await self.on_all(lambda client: client.abort(names))

    async def take_out(self, number: int, reason: str) -> None:
        """An engine or the router is lost. What an engine has under way breaks off when it ends or is killed."""
        if number == ROUTER:
            await self._lose_router(reason)
        elif (seat := self._serving.get(number)) is not None:
            self._num_lost += 1
            self._num_leaving += 1
            self._none_leaves.clear()
            try:
                await super().take_out(number, reason)
                if not self._serving and not self._recovers:
                    self._routed.fail(EngineUnreachableError(f"{reason} No other engine is left. {self._remedy}"))
                await self._unregister(seat.client.address)
            finally:
                self._num_leaving -= 1
                if not self._num_leaving:
                    self._none_leaves.set()

    async def _unregister(self, address: str) -> None:
        if self._place is None:
            return
        try:
            await self._place.router.leave(address)
        except EngineError as error:
            await self._lose_router(str(error))

    async def _lose_router(self, reason: str) -> None:
        if self._place is not None:
            place, self._place = self._place, None
            self._say_lost(ROUTER, reason)
            await place.router.close()

    async def _prepare(self, number: int, client: EngineClient) -> None:
        await super()._prepare(number, client)
        await self._none_leaves.wait()  # it may come back under the address that it had
        if self._place is not None:
            await self._place.router.register(client.address)

    async def admit(self, number: int, client: EngineClient) -> None:
        """An engine came back: it gets the published weights and its place behind the router, then it serves.

        Raises:
            EngineError: it did not take them.
        """
        await super().admit(number, client)
        self._routed.moved()

    async def admit_router(self, router: RouterClient) -> None:
        """The engines that serve register with a router that has just started; from now on requests go through it.

        Raises:
            EngineError: it did not take one of them.
        """
        async with self.steering:
            await asyncio.gather(*(router.register(client.address) for client in self.clients))
            self._losses.pop(ROUTER, None)
            self._place = RouterPlace(router)
            self._routed.moved()
            self._tell_room()

    async def close(self) -> None:
        """Close the connections to the router and all engines."""
        if self._place is not None:
            await self._place.router.close()
        await super().close()
