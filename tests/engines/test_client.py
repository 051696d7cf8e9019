"""The client and the fleet, against the embedded engine and against servers that misbehave."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp import web

from miles.engines.client import EngineClient
from miles.engines.fleet import EngineFleet
from miles.errors import EngineError
from miles.types import VersionSpan

from .engine_fixtures import ModelFolders, load_reference, options_for, reference_logprobs, running
from .scripted import answer_body, answering, request

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def served(folders: dict[str, ModelFolders]) -> Iterator[str]:
    with running(options_for(folders["qwen3"].first)) as address:
        yield address


@pytest.fixture
async def client(served: str) -> AsyncIterator[EngineClient]:
    async with EngineClient(served) as opened:
        yield opened
        await opened.continue_generation()


async def until_busy(client: EngineClient) -> None:
    busy = False
    while not busy:
        try:
            await client.flush_cache()
        except EngineError:
            busy = True


async def test_answers(client: EngineClient, qwen3: ModelFolders) -> None:
    answers = await client.generate([request("a"), request("b", 7, temperature=0.5), request("c", 0)])
    assert [(a.rid, len(a.output_ids)) for a in answers] == [("a", 5), ("b", 7), ("c", 0)]
    assert {a.finish_reason for a in answers} == {"length"}
    assert answers[0].versions == (VersionSpan(0, 0, 5),)
    assert answers[2].versions == ()
    expected = reference_logprobs(load_reference(qwen3.first), [5, 6, 7], list(answers[1].output_ids), 0.5)
    assert answers[1].logprobs == pytest.approx(expected, abs=1e-4)
    assert await client.generate([]) == []


async def test_abort_ends_exactly_the_named_requests(client: EngineClient) -> None:
    tasks = [asyncio.create_task(client.generate([request(rid, 240)])) for rid in ("7-1", "7-10")]
    await until_busy(client)
    await client.abort(["7-1", "nobody"])
    (first,), (second,) = await asyncio.gather(*tasks)
    assert first.finish_reason == "abort"
    assert len(first.output_ids) == len(first.logprobs) < 240
    assert (second.finish_reason, len(second.output_ids)) == ("length", 240)


async def test_cancelling_aborts_on_the_engine(client: EngineClient) -> None:
    await client.pause("in_place")
    task = asyncio.create_task(client.generate([request("x", 240)]))
    await asyncio.wait([task], timeout=0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await client.continue_generation()
    # nothing is left running or waiting
    await client.flush_cache()


async def test_steering(client: EngineClient, qwen3: ModelFolders) -> None:
    assert await client.healthy()
    task = asyncio.create_task(client.generate([request("s", 400)]))
    await until_busy(client)
    with pytest.raises(EngineError, match=r"flush_cache answered 400: Cache not flushed: \d requests are running"):
        await client.flush_cache()
    await client.pause("retract")
    await client.update_weights_from_disk(str(qwen3.second), 3, flushes=False)
    assert await client.weight_version() == 3
    await client.continue_generation()
    (answer,) = await task
    assert [span.version for span in answer.versions] in ([0, 3], [0], [3])
    await client.update_weights_from_disk(str(qwen3.first), 0, flushes=False)
    task = asyncio.create_task(client.generate([request("s", 400)]))
    await until_busy(client)
    await client.abort_all()
    assert (await task)[0].finish_reason == "abort"


async def test_refusals_carry_address_and_words(client: EngineClient) -> None:
    with pytest.raises(EngineError) as caught:
        await client.generate([request("a", 10_000)])
    assert client.address in str(caught.value)
    assert "exceed the context of 512 tokens" in str(caught.value)
    with pytest.raises(EngineError, match=r"holds no \*\.safetensors"):
        await client.update_weights_from_disk("/nowhere", 1, flushes=False)


async def test_a_dead_engine_is_an_error_at_once() -> None:
    async with EngineClient("http://127.0.0.1:9") as client:
        with pytest.raises(EngineError, match=r"127\.0\.0\.1:9/generate cannot be reached"):
            await client.generate([request("a")])
        assert not await client.healthy()


async def test_a_silent_engine_is_an_error_in_time() -> None:
    async def silent(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise web.HTTPInternalServerError

    async with answering(silent) as address:
        client = EngineClient(address, generate_timeout_seconds=0.1, control_timeout_seconds=0.1)
        with pytest.raises(EngineError, match=r"did not answer within 0\.1 s"):
            await client.generate([request("a")])
        with pytest.raises(EngineError, match=r"pause_generation did not answer"):
            await client.pause("abort")
        await client.close()


async def test_only_harmless_calls_are_repeated() -> None:
    calls: list[str] = []

    async def hang_up(http: web.Request) -> web.StreamResponse:
        calls.append(http.path)
        if calls.count(http.path) < 3 and http.transport is not None:
            http.transport.close()
        return web.json_response({"weight_version": "4"})

    async with answering(hang_up) as address, EngineClient(address) as client:
        assert await client.weight_version() == 4
        with pytest.raises(EngineError):
            await client.generate([request("a")])
    assert calls.count("/model_info") == 3
    assert calls.count("/generate") == 1


class ScriptedClient(EngineClient):
    """Notes what it is asked; answers when told to."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__("http://scripted")
        self.asked: list[str] = []
        self.aborted: list[str] = []
        self.release = asyncio.Event()
        self.fails = fails
        self.num_pauses = 0

    async def generate(self, requests: Any) -> Any:
        self.asked += [r.rid for r in requests]
        await self.release.wait()
        return []

    async def abort(self, rids: Any) -> None:
        self.aborted += rids

    async def pause(self, mode: Any) -> None:
        if self.fails:
            raise EngineError("will not pause")
        self.num_pauses += 1


async def test_a_fleet_asks_the_least_busy_engine() -> None:
    clients = [ScriptedClient(), ScriptedClient()]
    fleet = EngineFleet(clients)
    batches = [[request(f"{i}{j}") for j in range(size)] for i, size in enumerate([3, 1, 1, 2])]
    tasks = [asyncio.create_task(fleet.generate(batch)) for batch in batches]
    await asyncio.wait(tasks, timeout=0.01)
    assert clients[0].asked == ["00", "01", "02"]
    assert clients[1].asked == ["10", "20", "30", "31"]
    await fleet.abort(["02", "31", "nobody"])
    assert (clients[0].aborted, clients[1].aborted) == (["02"], ["31"])
    for client in clients:
        client.release.set()
    await asyncio.gather(*tasks)
    await fleet.close()


async def test_steering_a_fleet_reaches_all_even_if_one_fails() -> None:
    clients = [ScriptedClient(fails=True), ScriptedClient()]
    with pytest.raises(EngineError, match="will not pause"):
        await EngineFleet(clients).pause("abort")
    assert clients[1].num_pauses == 1


async def test_a_fleet_of_two_engines(served: str, qwen3: ModelFolders) -> None:
    with running(options_for(qwen3.first)) as other:
        fleet = EngineFleet([EngineClient(served), EngineClient(other)])
        assert await fleet.healthy()
        answers = await asyncio.gather(*(fleet.generate([request(f"{i}")]) for i in range(6)))
        assert [len(a.output_ids) for (a,) in answers] == [5] * 6
        await fleet.pause("retract")
        await fleet.flush_cache()
        await fleet.on_all(lambda each: each.update_weights_from_disk(str(qwen3.first), 0, flushes=False))
        await fleet.continue_generation()
        assert await fleet.weight_versions() == [0, 0]
        await fleet.abort_all()
        await fleet.close()


def test_an_empty_fleet_is_refused() -> None:
    with pytest.raises(EngineError, match="at least one engine"):
        EngineFleet([])


async def test_requests_of_different_versions_share_no_cached_prefix() -> None:
    keys: list[str] = []

    async def handler(http: web.Request) -> web.Response:
        body = await http.json()
        if http.path == "/generate":
            keys.append(body["extra_key"])
        return web.json_response([])

    async with answering(handler) as address, EngineClient(address) as client:
        for version in (3, 4, 4):
            await client.update_weights_from_disk("folder", version, flushes=False)
            with pytest.raises(EngineError, match="no list of 1 answers"):
                await client.generate([request("a")])
    assert keys[0] != keys[1] == keys[2]


async def test_a_bounded_pool_keeps_requests_back_and_lets_aborts_pass() -> None:
    release, is_full, counts = asyncio.Event(), asyncio.Event(), {"/generate": 0, "/abort_request": 0}
    most = 0

    async def handler(http: web.Request) -> web.Response:
        nonlocal most
        counts[http.path] += 1
        if http.path == "/generate":
            most = max(most, counts["/generate"])
            if most == 3:
                is_full.set()
            await release.wait()
            counts["/generate"] -= 1
        return web.json_response([answer_body([(0, 0, 1)], 1)])

    async with answering(handler) as address, EngineClient(address, max_generations=3) as client:
        tasks = [asyncio.create_task(client.generate([request(str(number), 1)])) for number in range(9)]
        await is_full.wait()
        await client.abort(["0"])
        assert counts["/abort_request"] == 1
        release.set()
        assert [answers[0].rid for answers in await asyncio.gather(*tasks)] == [str(number) for number in range(9)]
    assert most == 3


async def test_a_fleet_s_engines_hold_no_more_than_they_may_and_what_waits_is_told() -> None:
    clients = [ScriptedClient(), ScriptedClient()]
    fleet = EngineFleet(clients, max_in_flight=2)
    heard: list[bool] = []
    fleet.on_room(lambda: heard.append(fleet.has_room))
    tasks = [asyncio.create_task(fleet.generate([request(str(number))])) for number in range(6)]
    await asyncio.wait(tasks, timeout=0.01)
    assert [len(client.asked) for client in clients] == [2, 2]
    assert not fleet.has_room
    for client in clients:
        client.release.set()
    await asyncio.gather(*tasks)
    assert sorted(clients[0].asked + clients[1].asked) == [str(number) for number in range(6)]
    assert heard == [True]


async def test_an_engine_that_does_not_pause_in_time_is_lost_and_not_asked_twice() -> None:
    num_asked = 0

    async def silent(_: web.Request) -> web.StreamResponse:
        nonlocal num_asked
        num_asked += 1
        await asyncio.Event().wait()
        raise web.HTTPInternalServerError

    async with answering(silent) as address:
        fleet = EngineFleet([EngineClient(address, prompt_timeout_seconds=0.1)], recovers=True)
        await fleet.pause("retract")
        assert fleet.clients == ()
        assert "did not answer within 0.1 s" in await fleet.lost(0)
        assert num_asked == 1
