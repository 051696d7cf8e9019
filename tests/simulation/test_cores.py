"""Shared cores: n at once on c cores take n / c as long, and no work is lost, made or done twice."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.simulation.cores import Cores, Process
from miles.simulation.virtual_time import VirtualClock, run_virtual

pytestmark = pytest.mark.unit
TASKS = st.lists(st.tuples(st.floats(0, 20), st.floats(0.01, 10)), min_size=1, max_size=12)
SLACK = 1e-4


def ends_of(tasks: list[tuple[float, float]], number: int | None) -> list[float]:
    """When tasks (arrival, seconds) end."""

    async def main() -> list[float]:
        clock, cores = VirtualClock(), Cores(number)

        async def one(arrival: float, seconds: float) -> float:
            await clock.sleep(arrival)
            await cores.work(seconds)
            return clock.now()

        return await asyncio.gather(*(one(*task) for task in tasks))

    found: list[float] = run_virtual(main())
    return found


@given(st.integers(1, 9), st.integers(1, 9), st.floats(0.1, 50))
@settings(max_examples=50, deadline=None)
def test_n_on_c_cores_take_n_over_c_as_long(num_tasks: int, number: int, seconds: float) -> None:
    expected = seconds * max(1.0, num_tasks / number)
    assert ends_of([(0.0, seconds)] * num_tasks, number) == pytest.approx([expected] * num_tasks, abs=SLACK)


@given(TASKS, st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_cores_do_all_the_work_and_no_more(tasks: list[tuple[float, float]], number: int) -> None:
    ends = ends_of(tasks, number)
    assert all(end >= arrival + seconds - SLACK for end, (arrival, seconds) in zip(ends, tasks, strict=True))
    first = min(arrival for arrival, _ in tasks)
    for now in ends:
        done = sum(seconds for end, (_, seconds) in zip(ends, tasks, strict=True) if end <= now + SLACK)
        assert done <= number * (now - first) + SLACK * len(tasks)


@given(TASKS)
@settings(max_examples=100, deadline=None)
def test_one_core_is_never_idle_while_there_is_work(tasks: list[tuple[float, float]]) -> None:
    free = 0.0
    for arrival, seconds in sorted(tasks):
        free = max(free, arrival) + seconds
    assert max(ends_of(tasks, 1)) == pytest.approx(free, abs=SLACK)


@given(TASKS)
@settings(max_examples=50, deadline=None)
def test_enough_cores_are_as_good_as_one_each(tasks: list[tuple[float, float]]) -> None:
    assert ends_of(tasks, None) == ends_of(tasks, len(tasks))
    assert ends_of(tasks, None) == pytest.approx([arrival + seconds for arrival, seconds in tasks], abs=SLACK)


def test_who_is_cancelled_leaves_the_core() -> None:
    async def main() -> float:
        clock, cores = VirtualClock(), Cores(1)
        other = asyncio.create_task(cores.work(100.0))
        mine = asyncio.create_task(cores.work(4.0))
        await clock.sleep(2.0)
        other.cancel()
        await mine
        return clock.now()

    assert run_virtual(main()) == pytest.approx(2.0 + 3.0)


def test_a_task_that_needs_less_ends_sooner() -> None:
    async def main() -> float:
        clock, cores = VirtualClock(), Cores()
        task = cores.begin(10.0)
        await clock.sleep(2.5)
        assert cores.got(task) == pytest.approx(2.5)
        cores.shorten(task, 3.0)
        await cores.until_ended(task)
        return clock.now()

    assert run_virtual(main()) == pytest.approx(3.0)


def test_a_process_does_one_thing_at_a_time() -> None:
    async def main() -> tuple[float, float]:
        clock = VirtualClock()
        process = Process(Cores())
        await asyncio.gather(*(process.work(seconds) for seconds in (1.0, 2.0, 3.0)))
        return clock.now(), process.busy_seconds

    assert run_virtual(main()) == pytest.approx((6.0, 6.0))
