"""Lost engines: what they were asked is asked elsewhere, and they join again with the current weights."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from miles.engines.client import EngineClient
from miles.engines.connection import EngineUnreachableError
from miles.engines.fleet import EngineFleet
from miles.engines.openai import OpenAiEndpoint
from miles.engines.wire import Answer, GenerateRequest, SamplingParams
from miles.errors import EngineError

from .scripted import answering

pytestmark = [pytest.mark.unit, pytest.mark.timeout(30)]


def request(rid: str) -> GenerateRequest:
    return GenerateRequest(rid, (5,), SamplingParams(1))


class Engine(EngineClient):
    """Answers at once, or breaks off, or hangs until it is closed; notes what it is told."""

    def __init__(self, name: str, *, breaks: bool = False, hangs: bool = False, refuses: str = "") -> None:
        super().__init__(f"http://{name}")
        self.breaks, self.hangs, self.refuses = breaks, hangs, refuses
        self.told: list[str] = []
        self._gone = asyncio.Event()

    async def _tell(self, what: str) -> None:
        self.told.append(what)
        if self.hangs:
            await self._gone.wait()
        if self.breaks or self.hangs:
            raise EngineUnreachableError(f"{self.address} broke off")
        if self.refuses and what.startswith(self.refuses):
            raise EngineError(f"{self.address} refuses to {what}")

    async def generate(self, requests: Any) -> list[Answer]:
        await self._tell("generate")
        return [Answer(r.rid, (1,), (0.0,), "length", (), text=self.address) for r in requests]

    async def pause(self, mode: Any) -> None:
        await self._tell(f"pause {mode}")

    async def update_weights_from_disk(self, path: str, version: int, *, flushes: bool) -> None:
        await self._tell(f"load {version}")

    async def model_name(self) -> str:
        return "m"

    async def alive(self, timeout_seconds: float, *, is_updating: bool = False) -> bool:
        return not (self.breaks or self.hangs)

    async def close(self) -> None:
        self._gone.set()
        await super().close()


class Aborting(Engine):
    """Notes what it shall end, too."""

    async def abort(self, rids: Any) -> None:
        for rid in rids:
            await self._tell(f"abort {rid}")


async def load_everywhere(fleet: EngineFleet, version: int) -> None:
    """What a publication does."""
    await fleet.on_all(lambda client: client.update_weights_from_disk("folder", version, flushes=False))
    fleet.reload_with(lambda number, client: client.update_weights_from_disk(f"for {number}", version, flushes=True))


async def test_requests_of_a_broken_engine_go_to_another() -> None:
    fleet = EngineFleet([Engine("a", breaks=True), Engine("b")], recovers=True)
    answers = await asyncio.gather(*(fleet.generate([request(str(i))]) for i in range(5)))
    assert [[a.rid for a in batch] for batch in answers] == [[str(i)] for i in range(5)]
    assert {a.text for batch in answers for a in batch} == {"http://b"}
    assert "broke off" in await fleet.lost(0)


async def test_taking_out_a_hung_engine_frees_what_waits_for_it() -> None:
    fleet = EngineFleet([Engine("a", hangs=True), Engine("b")], recovers=True)
    waiting = asyncio.create_task(fleet.generate([request("x")]))
    await asyncio.sleep(0)
    assert not waiting.done()
    await fleet.take_out(0, "no sign of life")
    assert (await waiting)[0].text == "http://b"


async def test_real_connections_break_when_an_engine_is_taken_out() -> None:
    async def never(http: web.Request) -> web.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    asked = asyncio.Event()
    async with answering(never) as address:
        fleet = EngineFleet([EngineClient(address), Engine("b")], recovers=True)
        waiting = asyncio.create_task(fleet.generate([request("x")]))
        await asked.wait()
        await fleet.take_out(0, "hangs")
        assert (await waiting)[0].text == "http://b"
        await fleet.close()


async def test_without_any_engine_requests_wait_for_one_to_come_back() -> None:
    fleet = EngineFleet([Engine("a", breaks=True)], recovers=True)
    waiting = asyncio.create_task(fleet.generate([request("x")]))
    await fleet.lost(0)
    assert not waiting.done()
    await fleet.admit(0, Engine("again"))
    assert (await waiting)[0].text == "http://again"


async def test_an_engine_loads_the_current_weights_before_it_serves() -> None:
    fleet = EngineFleet([Engine("a"), Engine("b", breaks=True)], recovers=True)
    await load_everywhere(fleet, 7)
    back = Engine("b")
    await fleet.admit(1, back)
    await fleet.take_out(0, "gone")
    await fleet.generate([request("x")])
    assert back.told == ["load 7", "generate"]


async def test_no_engine_joins_in_the_middle_of_an_update() -> None:
    fleet, back = EngineFleet([Engine("a"), Engine("b", breaks=True)], recovers=True), Engine("b")
    async with fleet.steering:
        joining = asyncio.create_task(fleet.admit(1, back))
        await fleet.pause("retract")
        assert len(fleet.clients) == 1
        await load_everywhere(fleet, 1)
    await joining
    assert back.told == ["load 1"]


async def test_an_engine_that_refuses_what_others_did_is_taken_out() -> None:
    fleet = EngineFleet([Engine("a", refuses="load"), Engine("b")], recovers=True)
    await load_everywhere(fleet, 1)
    assert [client.address for client in fleet.clients] == ["http://b"]
    assert "refuses to load 1" in await fleet.lost(0)


async def test_weights_that_every_engine_refuses_are_an_error() -> None:
    fleet = EngineFleet([Engine("a", refuses="load"), Engine("b", refuses="load")], recovers=True)
    with pytest.raises(EngineError, match="refuses to load 1"):
        await load_everywhere(fleet, 1)
    assert len(fleet.clients) == 2


async def test_where_nobody_restarts_engines_the_last_loss_is_an_error() -> None:
    fleet = EngineFleet([Engine("a", breaks=True), Engine("b", breaks=True)])
    with pytest.raises(EngineUnreachableError, match="b broke off"):
        await fleet.generate([request("x")])


async def test_a_connection_that_breaks_alone_costs_no_engine() -> None:
    class Flaky(Engine):
        async def generate(self, requests: Any) -> list[Answer]:
            self.told.append("generate")
            if len(self.told) < 3:
                raise EngineUnreachableError("Server disconnected")
            return await super().generate(requests)

    engine = Flaky("a")
    fleet = EngineFleet([engine], recovers=True)
    assert (await fleet.generate([request("x")]))[0].rid == "x"
    assert fleet.clients == (engine,)


async def test_what_is_asked_again_has_a_name_of_its_own_by_which_it_can_be_ended() -> None:
    class Forgetful(Engine):
        """Does not notice that nobody waits any more, as SGLang for a while, and refuses two requests of one name."""

        async def generate(self, requests: Any) -> list[Answer]:
            names = [one.rid for one in requests]
            if set(names) & set(self.told):
                raise EngineError("Duplicate request ID detected")
            self.told += names
            if len(self.told) == len(names):
                raise EngineUnreachableError("Server disconnected")
            await self._gone.wait()
            return [Answer(name, (), (), "abort", ()) for name in names]

        async def abort(self, rids: Any) -> None:
            assert set(rids) <= set(self.told[2:])
            self._gone.set()

    fleet = EngineFleet([Forgetful("a")], recovers=True)
    waiting = asyncio.create_task(fleet.generate([request("x"), request("y")]))
    while not waiting.done():
        await asyncio.sleep(0)
        await fleet.abort(["x"])
    assert [answer.rid for answer in await waiting] == ["x", "y"]


async def test_of_engines_that_nobody_restarts_a_lost_one_is_left_out_of_an_update() -> None:
    fleet = EngineFleet([Engine("a", breaks=True), Engine("b")], remedy="Mend it.")
    await load_everywhere(fleet, 1)
    assert [client.address for client in fleet.clients] == ["http://b"]
    assert "broke off" in await fleet.lost(0)


@pytest.mark.parametrize("first", [{"refuses": "load"}, {"breaks": True}])
async def test_their_refusal_and_the_loss_of_the_last_end_the_run_with_the_remedy(first: dict[str, Any]) -> None:
    fleet = EngineFleet([Engine("a", **first), *([] if "breaks" in first else [Engine("b")])], remedy="Mend it.")
    with pytest.raises(EngineError, match=r"http://a (refuses to load 1|broke off).* Mend it\."):
        await load_everywhere(fleet, 1)


async def test_user_code_is_asked_again_where_its_engine_was_lost() -> None:
    fleet, asked = EngineFleet([Engine("a", breaks=True), Engine("b")], recovers=True), []

    async def ask(endpoint: OpenAiEndpoint) -> str:
        asked.append(endpoint.base_url)
        if endpoint.address == "http://a":
            raise ConnectionResetError("peer")
        return endpoint.model

    assert await fleet.through_openai(ask) == "m"
    assert asked == ["http://a/v1", "http://b/v1"]
    assert "broke off: peer" in await fleet.lost(0)


@pytest.mark.parametrize("error", [KeyError("mine"), EngineError("mine")])
async def test_what_user_code_fails_with_at_a_living_engine_is_its_own_and_ends_what_it_asked_for(error: Exception) -> None:
    engine = Aborting("a")

    async def ask(endpoint: OpenAiEndpoint) -> str:
        endpoint.fields("x", SamplingParams(1))
        raise error

    with pytest.raises(type(error), match="mine"):
        await EngineFleet([engine], recovers=True).through_openai(ask)
    assert engine.told == ["abort x"]


async def test_an_engine_that_is_gone_is_told_nothing() -> None:
    gone, other = Aborting("a", breaks=True), Aborting("b")

    async def ask(endpoint: OpenAiEndpoint) -> str:
        endpoint.fields("x", SamplingParams(1))
        if endpoint.address == gone.address:
            raise EngineUnreachableError("gone")
        return endpoint.address

    assert await EngineFleet([gone, other], recovers=True).through_openai(ask) == other.address
    assert gone.told == []
