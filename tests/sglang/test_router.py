"""sglang's own router before two embedded engines: answers pass unchanged, groups stay together, engines come and go."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path

import pytest

from miles.engines.client import EngineClient
from miles.engines.routed_fleet import ROUTER, RoutedFleet
from miles.engines.router import RouterClient
from miles.engines.router_server import RouterOptions, RouterServer
from miles.engines.wire import GenerateRequest, SamplingParams
from miles.errors import EngineError

from ..engines.engine_fixtures import ModelFolders, options_for, running
from ..engines.test_client import until_busy

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(120)]
LONG = SamplingParams(240, ignore_eos=True)


@pytest.fixture(scope="module")
def engines(qwen3: ModelFolders) -> Iterator[list[str]]:
    options = options_for(qwen3.first, deterministic=True)
    with running(options) as first, running(options) as second:
        yield [first, second]


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a router that knows no engine."""
    log = tmp_path_factory.mktemp("router") / "router.log"
    server = RouterServer(RouterOptions("manual", number=0, max_generations=64, first_port=26000), log)

    async def address() -> str:
        client = await server.start()
        await client.close()
        return client.address

    try:
        yield asyncio.run(asyncio.wait_for(address(), 60))
    finally:
        asyncio.run(server.process.stop())


@pytest.fixture
async def fleet(engines: list[str], router: str) -> AsyncIterator[RoutedFleet]:
    made = RoutedFleet([EngineClient(address) for address in engines], recovers=True)
    client = RouterClient(router, max_generations=64)
    await made.admit_router(client)
    yield made
    await made.continue_generation()
    await made.close()
    await empty(router)


async def empty(address: str) -> None:
    """Take every engine from a router."""
    client = RouterClient(address, max_generations=1)
    for engine in await client.workers():
        await client.leave(engine)
    await client.close()


def group(name: str, size: int, sampling: SamplingParams = LONG) -> list[GenerateRequest]:
    return [GenerateRequest(f"{name}-{place}", (5, 6, 7), sampling, name) for place in range(size)]


async def in_flight(fleet: RoutedFleet) -> list[int]:
    states = [(await client.server_info())["internal_states"][0] for client in fleet.clients]
    return [state["num_running_requests"] + state["num_waiting_requests"] for state in states]


async def until_in_flight(fleet: RoutedFleet, number: int) -> list[int]:
    while sum(found := await in_flight(fleet)) != number:
        pass
    return found


async def test_answers_are_those_of_the_engines(fleet: RoutedFleet) -> None:
    requests = [
        GenerateRequest(str(seed), (5, 6, 7), SamplingParams(9, 0.7, top_p=0.9, stop=("zz",), sampling_seed=seed), "one")
        for seed in range(6)
    ]
    assert await fleet.generate(requests) == await fleet.clients[0].generate(requests)


async def test_a_group_stays_together_and_groups_are_spread(fleet: RoutedFleet) -> None:
    await fleet.pause("in_place")
    tasks = [asyncio.create_task(fleet.generate(group(f"g{number}", 4))) for number in range(6)]
    assert await until_in_flight(fleet, 24) == [12, 12]
    for place in range(4):  # by rid: every engine holds whole groups
        await fleet.clients[0].abort([f"g{number}-{place}" for number in range(6)])
    assert await until_in_flight(fleet, 12) == [0, 12]
    await fleet.abort_all()
    answers = [answer for task in tasks for answer in await task]
    assert {answer.finish_reason for answer in answers} == {"abort"}
    assert [answer.rid for answer in answers] == [f"g{number}-{place}" for number in range(6) for place in range(4)]


async def test_an_abort_reaches_the_engine_that_has_the_request(fleet: RoutedFleet) -> None:
    tasks = [asyncio.create_task(fleet.generate(group(name, 1))) for name in ("a", "b", "c")]
    await until_in_flight(fleet, 3)
    await fleet.abort(["b-0", "nobody"])
    answers = [(await task)[0] for task in tasks]
    assert [answer.finish_reason for answer in answers] == ["length", "abort", "length"]
    assert len(answers[1].output_ids) == len(answers[1].logprobs) < 240


async def test_whoever_leaves_ends_its_requests_at_the_engines(fleet: RoutedFleet) -> None:
    await fleet.pause("in_place")
    task = asyncio.create_task(fleet.generate(group("left", 8)))
    await until_in_flight(fleet, 8)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await fleet.continue_generation()
    await fleet.flush_cache()  # refused if anything were left


async def test_the_engine_s_own_words_pass(fleet: RoutedFleet) -> None:
    with pytest.raises(EngineError, match="exceed the context of 512 tokens"):
        await fleet.generate(group("long", 1, SamplingParams(10_000)))


async def test_an_engine_that_is_taken_out_gets_nothing_more_and_comes_back(fleet: RoutedFleet, engines: list[str]) -> None:
    await fleet.take_out(0, "a test")
    answers = await asyncio.gather(*(fleet.generate(group(f"o{number}", 1, SamplingParams(1))) for number in range(8)))
    assert len(answers) == 8
    await fleet.pause("in_place")
    again = EngineClient(engines[0])
    await fleet.admit(0, again)
    task = asyncio.create_task(fleet.generate([one for number in range(4) for one in group(f"back{number}", 1)]))
    assert min(await until_in_flight(fleet, 4)) > 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_requests_wait_while_the_router_is_gone(fleet: RoutedFleet, router: str) -> None:
    await fleet.take_out(ROUTER, "a test")
    task = asyncio.create_task(fleet.generate(group("wait", 2, SamplingParams(1))))
    assert await fleet.lost(ROUTER) == "a test"
    assert not fleet.has_room
    await empty(router)
    await fleet.admit_router(RouterClient(router, max_generations=64))
    assert len(await task) == 2
    assert fleet.has_room


async def test_two_updates_of_weights_do_not_disturb_it(fleet: RoutedFleet, qwen3: ModelFolders) -> None:
    task = asyncio.create_task(fleet.generate(group("span", 4, SamplingParams(400, ignore_eos=True))))
    await until_busy(fleet.clients[0])

    def second(client: EngineClient) -> Awaitable[None]:
        return client.update_weights_from_disk(str(qwen3.second), 1, flushes=True)

    def first(client: EngineClient) -> Awaitable[None]:
        return client.update_weights_from_disk(str(qwen3.first), 0, flushes=True)

    for load in (second, first):
        await fleet.pause("retract")
        await fleet.on_all(load)
        await fleet.continue_generation()
    answers = await task
    assert [len(answer.output_ids) for answer in answers] == [400] * 4
    assert {span.version for answer in answers for span in answer.versions} <= {0, 1}


async def test_a_router_that_cannot_start_is_told_with_its_last_lines(tmp_path: Path) -> None:
    options = RouterOptions("manual", 0, 1, first_port=26100, extra=(("cache-threshold", "much"),))
    with pytest.raises(EngineError, match="(?s)sglang's router ended with exit code 2.*cache-threshold"):
        await RouterServer(options, tmp_path / "router.log").start()
