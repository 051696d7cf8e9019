"""Behind a router nobody says which engine was asked: what the fleet makes of broken connections. See also ``tests/sglang``."""

import asyncio
import itertools
from typing import Any

import pytest

from miles.engines.connection import BehindRouterError, EngineUnreachableError
from miles.engines.routed_fleet import ROUTER, RoutedFleet
from miles.engines.router import RouterClient
from miles.engines.wire import Answer
from miles.errors import EngineError

from .test_fleet import Engine, load_everywhere, request

pytestmark = [pytest.mark.unit, pytest.mark.timeout(30)]


class Router(RouterClient):
    """Takes its engines in turn, as the real one does without health checks: also one that is gone."""

    def __init__(self, *engines: Engine) -> None:
        super().__init__("http://router", max_generations=8)
        self.engines = {engine.address: engine for engine in engines}
        self.serving: list[str] = []
        self.turn = itertools.count()
        self.is_gone = False
        self.may_leave = asyncio.Event()
        self.may_leave.set()
        self.num_asked = 0

    async def generate(self, asked: Any, version: int) -> Answer:
        self.num_asked += 1
        if self.is_gone:
            raise EngineUnreachableError("the router cannot be reached")
        if not self.serving:
            raise BehindRouterError("no available workers")
        address = self.serving[next(self.turn) % len(self.serving)]
        try:
            (answer,) = await self.engines[address].generate([asked])
        except EngineUnreachableError as error:
            raise BehindRouterError(str(error)) from error
        return answer

    async def register(self, engine: str) -> None:
        self.serving.append(engine)

    async def leave(self, engine: str) -> None:
        await self.may_leave.wait()
        self.serving.remove(engine)

    async def alive(self, timeout_seconds: float, *, is_updating: bool = False) -> bool:
        return not self.is_gone


async def routed(*engines: Engine, recovers: bool = True) -> tuple[RoutedFleet, Router]:
    fleet, router = RoutedFleet(engines, recovers=recovers, remedy="Mend it."), Router(*engines)
    await fleet.admit_router(router)
    return fleet, router


async def test_an_engine_that_broke_off_is_found_and_its_requests_go_elsewhere() -> None:
    fleet, router = await routed(Engine("a", breaks=True), Engine("b"))
    answers = await fleet.generate([request(str(number)) for number in range(5)])
    assert [answer.rid for answer in answers] == ["0", "1", "2", "3", "4"]
    assert {answer.text for answer in answers} == {"http://b"}
    assert router.serving == ["http://b"]
    assert "no sign of life" in await fleet.lost(0)


async def test_a_hung_engine_s_requests_come_back_when_it_is_killed() -> None:
    hung = Engine("a", hangs=True)
    fleet, router = await routed(hung, Engine("b"))
    waiting = [asyncio.create_task(fleet.generate([request(str(number))])) for number in range(4)]
    await asyncio.sleep(0)
    await fleet.take_out(0, "no sign of life")
    assert router.serving == ["http://b"]
    assert {(await task)[0].text for task in waiting} == {"http://b"}


async def test_an_engine_serves_again_with_the_weights_before_it_is_registered() -> None:
    fleet, router = await routed(Engine("a"), Engine("b"))
    await load_everywhere(fleet, 7)
    await fleet.take_out(0, "gone")
    back = Engine("a")
    router.engines[back.address] = back
    await fleet.admit(0, back)
    assert back.told == ["load 7"]
    assert sorted(router.serving) == ["http://a", "http://b"]


async def test_without_any_engine_requests_wait_or_fail_with_the_remedy() -> None:
    fleet, router = await routed(Engine("a", breaks=True))
    waiting = asyncio.create_task(fleet.generate([request("x")]))
    await fleet.lost(0)
    assert not fleet.has_room and not waiting.done()
    again = Engine("again")
    router.engines[again.address] = again
    await fleet.admit(0, again)
    assert (await waiting)[0].text == "http://again"
    fleet, _ = await routed(Engine("a", breaks=True), recovers=False)
    with pytest.raises(EngineError, match=r"No other engine is left\. Mend it\."):
        await fleet.generate([request("x")])


async def test_a_lost_router_is_told_and_its_requests_wait_for_another() -> None:
    fleet, router = await routed(Engine("a"), Engine("b"))
    router.is_gone = True
    waiting = asyncio.create_task(fleet.generate([request("x")]))
    assert "cannot be reached" in await fleet.lost(ROUTER)
    assert not fleet.has_room and not waiting.done()
    await fleet.admit_router(Router(*fleet.clients))  # type: ignore[arg-type]
    assert (await waiting)[0].rid == "x"


async def test_aborts_go_to_every_engine_and_so_does_leaving() -> None:
    aborted: list[str] = []
    asked = asyncio.Event()

    class Noting(Engine):
        async def generate(self, requests: Any) -> list[Answer]:
            asked.set()
            return await super().generate(requests)

        async def abort(self, rids: Any) -> None:
            aborted.extend(f"{self.address} {rid}" for rid in rids)

    fleet, _ = await routed(Noting("a", hangs=True), Noting("b", hangs=True))
    task = asyncio.create_task(fleet.generate([request("x")]))
    await asked.wait()
    await fleet.abort(["y"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert sorted(aborted) == ["http://a x", "http://a y", "http://b x", "http://b y"]


async def test_what_is_asked_again_has_a_name_of_its_own_by_which_it_can_be_ended() -> None:
    names: list[str] = []
    aborted: list[str] = []
    second = asyncio.Event()

    class Flaky(Router):
        async def generate(self, asked: Any, version: int) -> Answer:
            names.append(asked.rid)
            if len(names) == 1:
                raise EngineUnreachableError("Server disconnected")
            second.set()
            return await super().generate(asked, version)

    class Ended(Engine):
        async def abort(self, rids: Any) -> None:
            aborted.extend(rids)
            self.hangs = self.breaks = False
            self._gone.set()

    engine = Ended("a", hangs=True)
    fleet = RoutedFleet([engine], recovers=True)
    await fleet.admit_router(Flaky(engine))
    waiting = asyncio.create_task(fleet.generate([request("x")]))
    await second.wait()
    await fleet.abort(["x"])
    assert [answer.rid for answer in await waiting] == ["x"]
    assert (names, aborted) == (["x", "x~1"], ["x~1"])


async def test_an_engine_that_refuses_is_an_error_in_its_own_words() -> None:
    fleet, _ = await routed(Engine("a", refuses="generate"))
    with pytest.raises(EngineError, match="http://a refuses to generate"):
        await fleet.generate([request("x")])


async def test_a_router_that_still_knows_a_lost_engine_is_not_asked_again_and_again() -> None:
    fleet, router = await routed(Engine("a", breaks=True), Engine("b"))
    router.may_leave.clear()
    leaving = asyncio.create_task(fleet.take_out(0, "its process ended"))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(fleet.generate([request("x")]))
    await asyncio.wait([waiting], timeout=0.05)
    assert (waiting.done(), router.num_asked) == (False, 1)
    router.may_leave.set()
    assert (await waiting)[0].text == "http://b"
    await leaving


async def test_breaks_that_nothing_explains_are_an_error_in_the_end() -> None:
    class Broken(Engine):
        async def alive(self, timeout_seconds: float, *, is_updating: bool = False) -> bool:
            return True

    fleet, router = await routed(Broken("a", breaks=True))
    with pytest.raises(BehindRouterError, match="a broke off"):
        await fleet.generate([request("x")])
    assert router.num_asked == 3
