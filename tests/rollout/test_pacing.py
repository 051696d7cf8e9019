"""The pacing rule: against counting by hand, and on thousands of random schedules played out event by event."""

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.rollout import pacing
from miles.rollout.pacing import PacingRule, PolicyClock

pytestmark = pytest.mark.unit

RULES = st.builds(
    PacingRule,
    batch_size=st.integers(1, 6),
    update_interval=st.integers(1, 3),
    max_staleness=st.integers(0, 4),
    num_steps=st.integers(1, 40),
)


@given(RULES, st.integers(0, 40), st.integers(-3, 3), st.integers(0, 12))
@settings(max_examples=300, deadline=None)
def test_steps_left_is_what_counting_step_by_step_gives(rule: PacingRule, taken: int, ahead: int, version: int) -> None:
    clock = PolicyClock(taken, ahead)
    start_version = taken // rule.update_interval + ahead
    by_hand = 0
    for step in range(taken, rule.num_steps):
        by_hand += start_version <= version + rule.max_staleness
        if (step + 1) % rule.update_interval == 0:
            start_version += 1
    assert pacing.steps_left(rule, clock, version) == by_hand


@given(RULES, st.integers(0, 30), st.integers(0, 12))
@settings(max_examples=200, deadline=None)
def test_on_schedule_it_is_the_formula(rule: PacingRule, taken: int, version: int) -> None:
    formula = (version + rule.max_staleness + 1) * rule.update_interval - taken
    assert pacing.steps_left(rule, PolicyClock(taken), version) == max(0, min(formula, rule.num_steps - taken))


@given(RULES, st.integers(0, 30), st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_the_clock_follows_what_the_policy_says(rule: PacingRule, step: int, version: int) -> None:
    clock = pacing.at_step(rule, step, version)
    assert step // rule.update_interval + clock.versions_ahead == version
    assert pacing.after_publish(rule, clock, version) == clock
    later = pacing.after_publish(rule, clock, version + 2)
    assert later.versions_ahead == clock.versions_ahead + 2
    assert pacing.after_publish(rule, later, version) == later


COUNTS = st.dictionaries(st.integers(0, 5), st.integers(1, 6), max_size=4)


@given(RULES, st.integers(0, 10), COUNTS, COUNTS)
@settings(max_examples=300, deadline=None)
def test_after_the_overdue_go_everything_left_fits(
    rule: PacingRule, taken: int, flying: dict[int, int], done: dict[int, int]
) -> None:
    clock = PolicyClock(taken)
    groups = sorted([(v, 0) for v, n in flying.items() for _ in range(n)] + [(v, 1) for v, n in done.items() for _ in range(n)])
    num_flying, num_done = pacing.overdue(rule, clock, flying, done)
    gone = groups[: num_flying + num_done]
    assert Counter(kind for _, kind in gone) == Counter({0: num_flying, 1: num_done})
    for first in range(len(gone) + 1):
        left = groups[first:]
        fits = all(sum(v <= a for v, _ in left) <= rule.batch_size * pacing.steps_left(rule, clock, a) for a, _ in left)
        assert fits == (first == len(gone))


@given(RULES, st.integers(0, 10), COUNTS, COUNTS)
@settings(max_examples=300, deadline=None)
def test_may_take_is_the_rule_group_by_group(rule: PacingRule, taken: int, flying: dict[int, int], done: dict[int, int]) -> None:
    clock = PolicyClock(taken)
    finished = sorted(version for version, number in done.items() for _ in range(number))
    behind = finished[rule.batch_size :] + [version for version, number in flying.items() for _ in range(number)]
    room = {a: rule.batch_size * max(0, pacing.steps_left(rule, clock, a) - 1) for a in behind}
    fits = all(sum(b <= a for b in behind) <= room[a] for a in behind)
    assert pacing.may_take(rule, clock, flying, done) == (len(finished) >= rule.batch_size and taken < rule.num_steps and fits)


def test_limits_stop_admission_only() -> None:
    rule = PacingRule(2, 1, 3, 10, capacity_groups=5, concurrent_groups=3)
    clock = PolicyClock(0)
    assert pacing.may_admit(rule, clock, 0, in_flight=2, finished=2)
    assert not pacing.may_admit(rule, clock, 0, in_flight=2, finished=3)
    assert not pacing.may_admit(rule, clock, 0, in_flight=3, finished=0)
    assert pacing.may_take(rule, clock, {0: 3}, {0: 50}) is False
    assert pacing.may_take(rule, clock, {0: 3}, {0: 4})


@dataclass
class Play:
    """One random schedule: groups finish, fail, are dropped; the policy trains and publishes."""

    seed: int
    in_flight: dict[int, int] = field(default_factory=dict)
    finished: list[tuple[int, int, int]] = field(default_factory=list)
    events: list[tuple[float, int, str, int]] = field(default_factory=list)
    now: float = 0.0
    published: int = 0
    issued: int = 0
    trained: int = 0
    training: bool = False
    steps_done: int = 0
    dropped: int = 0

    def __post_init__(self) -> None:
        self.rng = rng = random.Random(self.seed)
        batch_size, interval, bound = rng.randint(1, 6), rng.randint(1, 3), rng.randint(0, 4)
        self.rule = PacingRule(
            batch_size,
            interval,
            bound,
            rng.randint(5, 30),
            capacity_groups=rng.choice([None, batch_size, batch_size * 2]),
            concurrent_groups=rng.choice([None, rng.randint(1, (bound + 1) * interval * batch_size + 3)]),
        )
        self.ahead = rng.choice([0, 0, rng.randint(1, 3), -rng.randint(1, 3)])
        self.published = max(0, self.ahead)
        self.clock = pacing.at_step(self.rule, 0, self.published)
        self.drop_share, self.retry_share = rng.choice([0, 0, 0.2, 0.5]), rng.choice([0, 0.1])
        self.train_seconds = rng.choice([0.1, 1, 5])

    def later(self, seconds: float, what: str, group: int = 0) -> None:
        heapq.heappush(self.events, (self.now + seconds, self.rng.randrange(10**9), what, group))

    def duration(self) -> float:
        return self.rng.choice([self.rng.expovariate(1), self.rng.lognormvariate(0, 1.5), 0.01])

    def counts(self) -> tuple[Counter[int], Counter[int]]:
        return Counter(self.in_flight.values()), Counter(version for version, _, _ in self.finished)

    def admit(self) -> None:
        while pacing.may_admit(self.rule, self.clock, self.published, len(self.in_flight), len(self.finished)):
            self.in_flight[self.issued] = self.published
            self.later(self.duration(), "group", self.issued)
            self.issued += 1

    def take(self) -> None:
        if self.training or not pacing.may_take(self.rule, self.clock, *self.counts()):
            return
        self.finished.sort()
        batch, self.finished = self.finished[: self.rule.batch_size], self.finished[self.rule.batch_size :]
        assert len(batch) == self.rule.batch_size
        assert all(self.published - version <= self.rule.max_staleness for version, _, _ in batch), "too old"
        self.clock = self.clock.after_take()
        self.training = True
        self.later(self.train_seconds, "step")

    def group_ends(self, group: int) -> None:
        version = self.in_flight.pop(group)
        luck = self.rng.random()
        if luck < self.retry_share:
            self.in_flight[group] = self.published
            self.later(self.duration(), "group", group)
        elif luck < self.retry_share + self.drop_share:
            self.dropped += 1
        else:
            self.finished.append((version, len(self.events) + self.issued * 1000, group))

    def step_ends(self) -> None:
        self.training = False
        self.trained += self.rule.batch_size
        self.steps_done += 1
        if self.steps_done % self.rule.update_interval == 0:
            self.published += 1
            self.clock = pacing.after_publish(self.rule, self.clock, self.published)

    def run(self) -> None:
        self.admit()
        while self.steps_done < self.rule.num_steps:
            assert self.events, "deadlock"
            self.now, _, what, group = heapq.heappop(self.events)
            if what == "group":
                self.group_ends(group)
            else:
                self.step_ends()
            self.take()
            self.admit()
            self.take()
            self.check()

    def check(self) -> None:
        alive = len(self.in_flight) + len(self.finished)
        assert pacing.overdue(self.rule, self.clock, *self.counts()) == (0, 0), "a group would come too late"
        assert self.rule.capacity_groups is None or alive <= self.rule.capacity_groups
        assert self.rule.concurrent_groups is None or len(self.in_flight) <= self.rule.concurrent_groups
        in_training = self.rule.batch_size if self.training else 0
        assert self.issued == alive + in_training + self.trained + self.dropped


@pytest.mark.parametrize("block", range(10))
def test_random_schedules_hold_the_bound_and_end(block: int) -> None:
    for seed in range(block * 250, (block + 1) * 250):
        play = Play(seed)
        play.run()
        assert (play.in_flight, play.finished) == ({}, []), "nothing is left over at the end of a run"
