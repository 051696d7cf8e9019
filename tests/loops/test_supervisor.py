"""An engine is kept serving until its restarts are used up, however its end shows."""

import asyncio
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from miles.engines.client import LISTENS, EngineClient
from miles.engines.fleet import EngineFleet
from miles.engines.weight_calls import begin_weight_update
from miles.errors import EngineError
from miles.loops import supervisor
from miles.loops.supervisor import Limits, Supervisor, end

from ..engines.scripted import answering

pytestmark = [pytest.mark.unit, pytest.mark.timeout(30)]


class Client(EngineClient):
    """Alive until told otherwise."""

    def __init__(self) -> None:
        super().__init__("http://engine")
        self.is_alive = True

    async def alive(self, timeout_seconds: float, *, is_updating: bool = False) -> bool:
        return self.is_alive


@dataclass
class Process:
    """An engine that ends when told so."""

    client: EngineClient = field(default_factory=Client)
    ending: "asyncio.Future[str]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    is_killed: bool = False
    name: str = "engine 0"

    async def join(self, fleet: EngineFleet) -> None:
        await fleet.admit(0, self.client)

    async def ended(self) -> str:
        return await asyncio.shield(self.ending)

    def kill(self) -> None:
        self.is_killed = True
        if not self.ending.done():
            self.ending.set_result("killed")


@dataclass
class Bench:
    """A fleet of one engine, everything that was started, and what was said."""

    max_restarts: int = 1
    fails: bool = False
    timeout_seconds: float = 1.0
    started: list[Process] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, client: EngineClient | None = None) -> "asyncio.Task[None]":
        self.started.append(Process(client or Client()))
        self.fleet = EngineFleet([self.started[0].client], recovers=True)
        keeper = Supervisor(self.fleet, self, Limits(self.max_restarts, 0.001, self.timeout_seconds), self.say)
        return asyncio.create_task(keeper.keep(0, self.started[0]))

    async def start(self, number: int) -> Process:
        if self.fails:
            raise EngineError("it does not start")
        self.started.append(Process())
        return self.started[-1]

    def say(self, text: str) -> None:
        self.said.append(text)
        self.news.set()

    async def until_said(self, count: int) -> None:
        while len(self.said) < count:
            self.news.clear()
            await self.news.wait()


@pytest.mark.parametrize("way", ["ends", "breaks off", "is silent"])
async def test_a_lost_engine_is_started_again_and_joins(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    keeping = bench.begin()
    first = bench.started[0]
    if way == "ends":
        first.ending.set_result("engine 0 died: out of memory\nlast words")
    elif way == "breaks off":
        await bench.fleet.take_out(0, "broke off")
        first.ending.set_result("engine 0 died: out of memory\nlast words")
    else:
        monkeypatch.setattr(first.client, "is_alive", False)
        asyncio.get_running_loop().call_later(0.05, first.ending.set_result, "engine 0 died: out of memory")
    await bench.until_said(2)
    assert first.is_killed
    assert bench.fleet.clients == (bench.started[1].client,)
    assert "engine 0 died: out of memory — starting it again (1 of 1)" in bench.said[0]
    assert "last words" not in bench.said[0]
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_restarts_are_counted_and_the_last_words_are_told() -> None:
    bench = Bench(max_restarts=2)
    keeping = bench.begin()
    for number in range(3):
        bench.started[number].ending.set_result(f"engine 0 died: reason {number}")
        await bench.until_said(min(2 * number + 2, 4))
    with pytest.raises(EngineError, match=r"reason 2\nIt is not started again: --engine-max-restarts is 2"):
        await keeping
    assert all(process.is_killed for process in bench.started)


async def test_an_engine_that_does_not_start_again_ends_the_run() -> None:
    bench = Bench(fails=True)
    keeping = bench.begin()
    bench.started[0].ending.set_result("engine 0 died: once")
    with pytest.raises(EngineError, match="it does not start"):
        await keeping


@pytest.mark.parametrize("listens", [True, False])
async def test_in_an_update_an_engine_may_be_busy_but_not_silent(listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs is named long before the update's own limit, and the update goes on without it."""

    async def busy(http: web.Request) -> web.Response:
        if not listens or http.path != LISTENS:
            await asyncio.Event().wait()
        return web.Response()

    monkeypatch.setattr(supervisor, "CAUSE_SECONDS", 0.01)
    async with answering(busy) as address:
        bench = Bench(timeout_seconds=0.05)
        keeping = bench.begin(EngineClient(address))
        async with bench.fleet.steering:
            update = asyncio.create_task(bench.fleet.on_all(begin_weight_update))
            done, _ = await asyncio.wait([update], timeout=0.5)
            assert bool(done) is not listens
            assert bench.started[0].is_killed is not listens
        if not listens:
            assert update.result() == []
            assert "engine 0 is lost: it gave no sign of life for 0.05 s" in bench.said[0]
        await end([update, keeping])
        await bench.fleet.close()
