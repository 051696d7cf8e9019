"""Requests wait in one line: no engine holds more than it may, nobody is passed over, nobody is forgotten."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.engines.line import Line
from miles.errors import EngineError

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]
LIMIT = 4


@dataclass(eq=False)
class Place:
    num_in_flight: int = 0


@dataclass
class Bench:
    """Some places with room for ``LIMIT`` each, and how often the line ran empty."""

    num_places: int = 1
    places: list[Place] = field(default_factory=list)
    num_emptied: int = 0

    def __post_init__(self) -> None:
        self.places += [Place() for _ in range(self.num_places)]
        self.line: Line[Place] = Line(self.pick, self.emptied)

    def pick(self, size: int) -> Place | None:
        place = min(self.places, key=lambda place: place.num_in_flight, default=None)
        if place is None or (place.num_in_flight and place.num_in_flight + size > LIMIT):
            return None
        return place

    def emptied(self) -> None:
        self.num_emptied += 1


async def settled(tasks: "list[asyncio.Task[Place]]") -> int:
    """How many are done once nothing moves any more."""
    for _ in range(5):
        await asyncio.sleep(0)
    return sum(task.done() for task in tasks)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=20), st.integers(1, 3))
async def test_the_limit_holds_and_everyone_gets_in_in_order(asked: list[tuple[int, bool]], num_places: int) -> None:
    bench, entered = Bench(num_places), []

    async def ask(number: int, size: int) -> None:
        place = await bench.line.enter(size)
        try:
            entered.append(number)
            assert place.num_in_flight <= max(LIMIT, size)
            await asyncio.sleep(0)
        finally:
            bench.line.leave(place, size)

    tasks = [asyncio.create_task(ask(number, size)) for number, (size, _) in enumerate(asked)]
    await asyncio.sleep(0)
    for task, (_, is_cancelled) in zip(tasks, asked, strict=True):
        if is_cancelled:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert entered == sorted(entered)
    assert {number for number, (_, is_cancelled) in enumerate(asked) if not is_cancelled} <= set(entered)
    assert len(bench.line) == 0
    assert [place.num_in_flight for place in bench.places] == [0] * num_places


async def test_a_large_request_is_not_passed_over() -> None:
    bench = Bench()
    first = await bench.line.enter(2)
    waiting = [asyncio.create_task(bench.line.enter(size)) for size in (3, 1)]
    assert await settled(waiting) == 0
    bench.line.leave(first, 2)
    assert await settled(waiting) == 2
    assert bench.num_emptied == 1


async def test_a_place_that_joins_lets_the_next_in() -> None:
    bench = Bench(0)
    waiting = [asyncio.create_task(bench.line.enter(1))]
    assert await settled(waiting) == 0
    bench.places.append(Place())
    bench.line.moved()
    assert await waiting[0] is bench.places[0]


async def test_where_nobody_will_come_back_all_are_told() -> None:
    bench = Bench(0)
    waiting = [asyncio.create_task(bench.line.enter(1)) for _ in range(2)]
    await settled(waiting)
    bench.line.fail(EngineError("all are gone"))
    for task in waiting:
        with pytest.raises(EngineError, match="all are gone"):
            await task


async def test_the_last_one_to_leave_the_line_is_noticed() -> None:
    bench = Bench()
    await bench.line.enter(LIMIT)
    waiting = asyncio.create_task(bench.line.enter(1))
    await settled([waiting])
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (len(bench.line), bench.num_emptied) == (0, 1)
