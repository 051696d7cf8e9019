"""Rows are never mixed, whatever joins, leaves, is aborted or retracted; against a runner that knows whose slot is whose."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from miles.engines.embedded.request import Generation, Request, Sampling
from miles.engines.embedded.scheduler import Scheduler

pytestmark = pytest.mark.unit

NUM_SLOTS = 4


def request(name: int, length: int) -> Request:
    sampling = Sampling(max_new_tokens=length, temperature=1.0, top_p=1.0, top_k=0, seed=name)
    return Request(rid=f"r{name}", input_ids=(name,), sampling=sampling)


class BookkeepingRunner:
    """Draws token ``1000 × name + place`` for the request that it believes to sit in a slot."""

    def __init__(self) -> None:
        self.slots: list[list[int]] = [[] for _ in range(NUM_SLOTS)]
        self.fails = False

    def prefill(self, generations: Sequence[Generation], first_slot: int) -> list[tuple[int, float]]:
        self._fail_if_asked()
        for slot, generation in enumerate(generations, start=first_slot):
            self.slots[slot] = [*generation.request.input_ids, *generation.output_ids]
        return [self._next(slot) for slot in range(first_slot, first_slot + len(generations))]

    def decode(self, num_rows: int) -> list[tuple[int, float]]:
        self._fail_if_asked()
        return [self._next(slot) for slot in range(num_rows)]

    def _next(self, slot: int) -> tuple[int, float]:
        tokens = self.slots[slot]
        token = 1000 * tokens[0] + len(tokens) - 1
        tokens.append(token)
        return token, -1.0

    def _fail_if_asked(self) -> None:
        if self.fails:
            self.fails = False
            raise RuntimeError("out of memory")

    def release(self) -> None:
        self.slots = []

    def resume(self) -> None:
        self.slots = [[] for _ in range(NUM_SLOTS)]

    def move(self, sources: list[int], targets: list[int]) -> None:
        assert not {*sources} & {*targets}
        for source, target in zip(sources, targets, strict=True):
            self.slots[target], self.slots[source] = self.slots[source], []

    def clear(self, slots: slice) -> None:
        for slot in range(*slots.indices(NUM_SLOTS)):
            self.slots[slot] = []


class Serving(RuleBasedStateMachine):
    """Random joins, steps, aborts, pauses, failures and updates."""

    @initialize()
    def start(self) -> None:
        self.runner = BookkeepingRunner()
        self.scheduler = Scheduler(self.runner, NUM_SLOTS, "0", frozenset(), lambda ids: "")
        self.asked: dict[str, int] = {}
        self.done: dict[str, Generation] = {}
        self.num_updates = 0

    def collect(self, finished: list[Generation]) -> None:
        for generation in finished:
            rid = generation.request.rid
            assert rid not in self.done, "answered twice"
            self.done[rid] = generation
            if generation.error is None and generation.finish["type"] == "length":
                assert len(generation.output_ids) == self.asked[rid]

    @rule(lengths=st.lists(st.integers(0, 6), max_size=6))
    def join(self, lengths: list[int]) -> None:
        new = [request(len(self.asked) + i, length) for i, length in enumerate(lengths)]
        self.asked.update((r.rid, r.sampling.max_new_tokens) for r in new)
        self.scheduler.add([Generation(r) for r in new])

    @rule()
    def step(self) -> None:
        if self.scheduler.has_work:
            self.collect(self.scheduler.step())

    @rule(which=st.sets(st.integers(0, 30), max_size=4))
    def abort(self, which: set[int]) -> None:
        self.collect(self.scheduler.abort(lambda r: int(r.rid[1:]) in which))

    @rule(mode=st.sampled_from(["abort", "retract", "in_place"]))
    def pause(self, mode: str) -> None:
        self.collect(self.scheduler.pause(mode))

    @rule()
    def resume(self) -> None:
        self.scheduler.resume()

    @rule()
    def update(self) -> None:
        self.num_updates += 1
        self.scheduler.weights_replaced(str(self.num_updates))

    @rule()
    def fail_next(self) -> None:
        self.runner.fails = True

    @invariant()
    def rows_are_never_mixed(self) -> None:
        everyone = [*self.scheduler.rows, *self.scheduler.waiting, *self.done.values()]
        assert sorted(g.request.rid for g in everyone) == sorted(self.asked), "lost or doubled"
        assert len(self.scheduler.rows) <= NUM_SLOTS
        for generation in everyone:
            name = generation.request.input_ids[0]
            assert generation.output_ids == [1000 * name + place for place in range(len(generation.output_ids))]

    @invariant()
    def spans_cover_every_token(self) -> None:
        for generation in self.done.values():
            spans = generation.version_spans()
            assert spans[0]["start"] == 0
            assert [s["end"] for s in spans[:-1]] == [s["start"] for s in spans[1:]]
            assert spans[-1]["end"] == len(generation.output_ids)
            versions = [int(s["version"]) for s in spans]
            assert versions == sorted(set(versions))

    def teardown(self) -> None:
        self.scheduler.resume()
        while self.scheduler.has_work:
            self.collect(self.scheduler.step())
        assert self.done.keys() == self.asked.keys()


TestServing = Serving.TestCase
TestServing.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_failed_step_fails_only_its_rows() -> None:
    runner = BookkeepingRunner()
    scheduler = Scheduler(runner, NUM_SLOTS, "0", frozenset(), lambda ids: "")
    scheduler.add([Generation(request(0, 5))])
    scheduler.step()
    scheduler.add([Generation(request(1, 5))])
    runner.fails = True
    (failed,) = scheduler.step()
    assert failed.request.rid == "r1"
    assert failed.error == "RuntimeError while sampling: out of memory"
    assert [g.request.rid for g in scheduler.rows] == ["r0"]


def test_a_tokenizer_that_fails_fails_one_request() -> None:
    def decode(ids: list[int]) -> str:
        raise KeyError(ids[-1])

    scheduler = Scheduler(BookkeepingRunner(), NUM_SLOTS, "0", frozenset(), decode)
    with_stop = request(0, 5)
    scheduler.add([Generation(replace(with_stop, sampling=replace(with_stop.sampling, stop=("x",)))), Generation(request(1, 5))])
    (failed,) = scheduler.step()
    assert failed.error == "KeyError while looking for a stop string: 0"
    assert [g.request.rid for g in scheduler.rows] == ["r1"]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_no_slot_idles_while_somebody_waits(lengths: list[int]) -> None:
    scheduler = Scheduler(BookkeepingRunner(), NUM_SLOTS, "0", frozenset(), lambda ids: "")
    scheduler.add([Generation(request(name, length)) for name, length in enumerate(lengths)])
    while scheduler.has_work:
        num_free = NUM_SLOTS - len(scheduler.rows)
        num_joined = min(num_free, len(scheduler.waiting))
        before = len(scheduler.waiting)
        scheduler.step()
        assert before - len(scheduler.waiting) == num_joined
