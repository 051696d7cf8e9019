"""Several engines as one: requests go where the fewest are in flight, steering goes to all, and a lost engine's work goes on.

An engine holds at most ``max_in_flight`` samples; what is more waits in one line, which is the back-pressure that the producer
listens to. An engine that breaks off, or does not acknowledge what the others did, is taken out: its connections are closed and
its requests are asked again elsewhere. Whoever restarts it gives it back with ``admit``, which brings it to the current weights
before it serves. ``routed_fleet`` puts sglang's router in front.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from miles.engines.client import EngineClient
from miles.engines.connection import MAX_GENERATIONS, EngineUnreachableError
from miles.engines.line import Line
from miles.engines.openai import OpenAiEndpoint
from miles.engines.wire import Answer, GenerateRequest, PauseMode
from miles.errors import EngineError

T = TypeVar("T")
MOST_BREAKS = 3
PROBE_SECONDS = 10.0
Load = Callable[[int, EngineClient], Awaitable[None]]
"""Brings one engine, given with its number, to the weights that are published now."""


@dataclass(eq=False, slots=True)
class Seat:
    """One engine that serves."""

    number: int
    client: EngineClient
    num_in_flight: int = 0


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a request: the engine of this number (a router's, where it chose), under this name."""

    number: int
    rid: str


class EngineFleet:
    """Implements ``wire.EngineApi`` over one or more clients, which it closes.

    recovers: lost engines come back through ``admit``, so requests wait for one when there is none left.
    remedy: what the user can do about an engine that failed and does not come back, a sentence.
    first_number: of the first client; the others follow.
    max_in_flight: samples at one engine at once; a request for more samples has the engine to itself.
    steering: held by whoever changes the engines' weights, so that no engine joins half-way.
    """

    def __init__(
        self,
        clients: Sequence[EngineClient],
        *,
        recovers: bool = False,
        max_in_flight: int = MAX_GENERATIONS,
        remedy: str = "See its log.",
        first_number: int = 0,
    ) -> None:
        if not clients:
            raise EngineError("A fleet needs at least one engine.")
        self.steering = asyncio.Lock()
        self._recovers, self._max_in_flight, self._remedy = recovers, max_in_flight, remedy
        self._serving = {number: Seat(number, client) for number, client in enumerate(clients, first_number)}
        self._line = Line(self._pick, self._tell_room)
        self._room_listeners: list[Callable[[], None]] = []
        self._holders: dict[str, Holder] = {}
        self._losses: dict[int, asyncio.Future[str]] = {}
        self._load: Load | None = None

    @property
    def clients(self) -> tuple[EngineClient, ...]:
        """Those that serve, in order of their numbers."""
        return tuple(self.serving.values())

    @property
    def serving(self) -> Mapping[int, EngineClient]:
        """Those that serve, by number, in order."""
        return {number: self._serving[number].client for number in sorted(self._serving)}

    @property
    def has_room(self) -> bool:
        """Whether nobody waits for an engine to have room."""
        return bool(self._serving) and not len(self._line)

    def on_room(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever ``has_room`` may have become true."""
        self._room_listeners.append(listener)

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        """Answers in the order of the requests; all go to the engine with the fewest samples in flight.

        Raises:
            EngineError: the engine refused or failed; carries its own words. One that broke off is raised only when no other
                is left and none comes back.
        """
        attempts = itertools.count()
        return await self._at_an_engine(len(requests), lambda seat: self._generate_at(seat, requests, next(attempts)))

    async def through_openai(self, ask: Callable[[OpenAiEndpoint], Awaitable[T]]) -> T:
        """What ``ask`` returns when it is given the OpenAI-style endpoint of the engine with the fewest samples in flight.

        It counts as one sample there, and is called again with another engine's endpoint if this one is lost meanwhile. When it
        is cancelled or fails, its requests end at the engine.
        """
        return await self._at_an_engine(1, lambda seat: self._ask_at(seat, ask))

    async def _ask_at(self, seat: Seat, ask: Callable[[OpenAiEndpoint], Awaitable[T]]) -> T:
        client = seat.client
        rids: list[str] = []

        def note(rid: str) -> None:
            rids.append(rid)
            self._holders[rid] = Holder(seat.number, rid)

        endpoint = OpenAiEndpoint(client.address, await client.model_name(), client.published, note, client.adapter)
        try:
            return await ask(endpoint)
        except EngineUnreachableError:
            raise  # there is nobody to tell
        except (asyncio.CancelledError, EngineError):
            await client.abort_in_time(rids)
            raise
        except Exception as error:
            if not await self._alive(client):
                raise EngineUnreachableError(f"{client.address} broke off: {error}") from error
            await client.abort_in_time(rids)
            raise
        finally:
            self._forget(rids)

    async def _at_an_engine(self, size: int, work: Callable[[Seat], Awaitable[T]]) -> T:
        """Do the work at an engine that has room for it; at another one if it is lost."""
        num_breaks = 0
        while True:
            seat = await self._line.enter(size)
            try:
                return await work(seat)
            except EngineUnreachableError as error:
                num_breaks += 1
                if num_breaks < MOST_BREAKS and await self._alive(seat.client):
                    continue  # a connection broke, not the engine
                if self._serving.get(seat.number) is seat:
                    await self.take_out(seat.number, str(error))
                self._raise_if_none_is_left(error)
            finally:
                self._line.leave(seat, size)

    def _raise_if_none_is_left(self, error: EngineError) -> None:
        if not self._serving and not self._recovers:
            raise type(error)(f"{error} No other engine is left. {self._remedy}") from error

    async def _alive(self, client: EngineClient) -> bool:
        """Whether an engine gives a sign of life; while weights change it need only listen."""
        return await client.alive(PROBE_SECONDS, is_updating=self.steering.locked())

    async def _generate_at(self, seat: Seat, requests: Sequence[GenerateRequest], attempt: int) -> list[Answer]:
        asked = [asked_again(request, attempt) for request in requests]
        self._holders |= {first.rid: Holder(seat.number, again.rid) for first, again in zip(requests, asked, strict=True)}
        try:
            answers = await seat.client.generate(asked)
        finally:
            self._forget([request.rid for request in requests])
        renamed = zip(requests, answers, strict=True) if attempt else ()
        return [replace(answer, rid=first.rid) for first, answer in renamed] or answers

    def _forget(self, rids: Sequence[str]) -> None:
        for rid in rids:
            self._holders.pop(rid, None)

    def _pick(self, size: int) -> Seat | None:
        """The engine with the fewest samples in flight, if it has room for ``size`` more."""
        if not self._serving:
            return None
        seat = min(self._serving.values(), key=lambda seat: (seat.num_in_flight, seat.number))
        return seat if not seat.num_in_flight or seat.num_in_flight + size <= self._max_in_flight else None

    def _tell_room(self) -> None:
        for listener in self._room_listeners:
            listener()

    async def abort(self, rids: Sequence[str]) -> None:
        """End requests now; their ``generate`` returns what was sampled. Unknown ids are ignored."""
        by_engine: dict[int, list[str]] = {}
        for holder in (self._holders[rid] for rid in rids if rid in self._holders):
            if holder.number in self._serving:
                by_engine.setdefault(holder.number, []).append(holder.rid)
        await asyncio.gather(*(self._serving[number].client.abort(theirs) for number, theirs in by_engine.items()))

    async def abort_all(self) -> None:
        """End every request on every engine."""
        await self.on_all(lambda client: client.abort_all())

    async def pause(self, mode: PauseMode) -> None:
        """Stop decoding everywhere."""
        await self.on_all(lambda client: client.pause(mode))

    async def continue_generation(self) -> None:
        """Decode again everywhere."""
        await self.on_all(lambda client: client.continue_generation())

    async def flush_cache(self) -> None:
        """Drop cached prefixes everywhere."""
        await self.on_all(lambda client: client.flush_cache())

    def reload_with(self, load: Load) -> None:
        """An engine that comes back is brought to the weights that are published from now on by ``load``."""
        self._load = load

    async def weight_versions(self) -> list[int]:
        """The version of every engine, in order."""
        return await self.on_all(lambda client: client.weight_version())

    async def healthy(self) -> bool:
        """Whether every engine answers and can sample."""
        return all(await self.on_all(lambda client: client.healthy()))

    async def close(self) -> None:
        """Close the connections to all."""
        await asyncio.gather(*(client.close() for client in self.clients))

    async def take_out(self, number: int, reason: str) -> None:
        """An engine is lost: close its connections, so that its requests are asked again elsewhere."""
        seat = self._serving.pop(number, None)
        if seat is None:
            return
        self._say_lost(number, reason)
        if not self._serving and not self._recovers:
            self._line.fail(EngineUnreachableError(f"{reason} No other engine is left. {self._remedy}"))
        await seat.client.close()

    def _say_lost(self, number: int, reason: str) -> None:
        loss = self._loss(number)
        if not loss.done():
            loss.set_result(reason)

    async def lost(self, number: int) -> str:
        """Wait until an engine is taken out; why."""
        return await asyncio.shield(self._loss(number))

    async def admit(self, number: int, client: EngineClient) -> None:
        """An engine came back: it gets the published weights, then it serves.

        Raises:
            EngineError: it did not take them.
        """
        async with self.steering:
            try:
                await self._prepare(number, client)
            except EngineError:
                await client.close()
                raise
            self._losses.pop(number, None)
            self._serving[number] = Seat(number, client)
            self._line.moved()
            self._tell_room()

    async def _prepare(self, number: int, client: EngineClient) -> None:
        """Before an engine serves (again)."""
        if self._load is not None:
            await self._load(number, client)

    def _loss(self, number: int) -> "asyncio.Future[str]":
        if number not in self._losses:
            self._losses[number] = asyncio.get_running_loop().create_future()
        return self._losses[number]

    async def on_all(self, call: Callable[[EngineClient], Awaitable[T]]) -> list[T]:
        """Ask all at once and wait for all, so that no engine is left half-way when another fails.

        Those that cannot be reached are taken out while others are left, and so are, where they come back, those that refuse
        what others did.
        """
        asked = {number: self._serving[number].client for number in sorted(self._serving)}
        results = await asyncio.gather(*(call(client) for client in asked.values()), return_exceptions=True)
        failures = {number: result for number, result in zip(asked, results, strict=True) if isinstance(result, BaseException)}
        refusals = [failure for failure in failures.values() if not isinstance(failure, EngineUnreachableError)]
        for failure in refusals:
            if not isinstance(failure, EngineError):
                raise failure
        if (refusals and not self._recovers) or (failures and len(failures) == len(asked) and (refusals or not self._recovers)):
            number, first = next((number, failure) for number, failure in failures.items() if not refusals or failure in refusals)
            raise type(first)(f"engine {number}: {first} {self._remedy}") from first
        for number, failure in failures.items():
            await self.take_out(number, str(failure))
        return [result for result in results if not isinstance(result, BaseException)]


def asked_again(request: GenerateRequest, attempt: int) -> GenerateRequest:
    """The request of attempt 0, 1, …; under a name of its own, since an engine refuses two of one name.

    It may not have noticed yet that nobody waits for the first one any more: SGLang looks every few seconds.
    """
    return request if not attempt else replace(request, rid=f"{request.rid}~{attempt}")
