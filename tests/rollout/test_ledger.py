"""The ledger against a second, naive one; what it refuses; snapshots."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from miles.errors import CheckpointError, RolloutError
from miles.rollout.ledger import DropReason, GroupState, Ledger
from miles.types import Rollout

from .simulated import group

pytestmark = pytest.mark.unit
CHOICE = st.integers(min_value=0, max_value=10**6)


class LedgerMachine(RuleBasedStateMachine):
    """Every transition on the ledger and on a plain dict of all groups ever issued."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.model: dict[int, str] = {}
        self.completed: list[int] = []
        self.retries: Counter[int] = Counter()

    def finished(self) -> list[int]:
        """Groups buffered or in training, in order of their last completion."""
        last = {index: place for place, index in enumerate(self.completed)}
        done = [index for index, state in self.model.items() if state in ("buffered", "in_training")]
        return sorted(done, key=last.__getitem__)

    def pick(self, choice: int, *states: str) -> int | None:
        candidates = [index for index, state in self.model.items() if state in states]
        return candidates[choice % len(candidates)] if candidates else None

    @rule()
    def reserve(self) -> None:
        waiting = [index for index, state in self.model.items() if state == "waiting"]
        wanted = min(waiting, default=len(self.model))
        assert self.ledger.reserve() == wanted
        self.model[wanted] = "in_flight"

    @precondition(lambda self: "in_flight" in self.model.values())
    @rule(choice=CHOICE)
    def buffer(self, choice: int) -> None:
        index = self.pick(choice, "in_flight")
        self.ledger.buffer(group(index))
        self.model[index] = "buffered"
        self.completed.append(index)

    @precondition(lambda self: "buffered" in self.model.values())
    @rule(choice=CHOICE)
    def start_training(self, choice: int) -> None:
        index = self.pick(choice, "buffered")
        self.ledger.start_training(index)
        self.model[index] = "in_training"

    @precondition(lambda self: "in_training" in self.model.values())
    @rule()
    def mark_trained(self) -> None:
        ready = [index for index, state in self.model.items() if state == "in_training"]
        self.ledger.mark_trained(Rollout(0, tuple(group(index) for index in ready)))
        self.model |= dict.fromkeys(ready, "trained")

    @rule(choice=CHOICE, reason=st.sampled_from(DropReason))
    def drop(self, choice: int, reason: DropReason) -> None:
        index = self.pick(choice, "waiting", "in_flight", "buffered")
        if index is not None:
            self.ledger.drop(index, reason)
            self.model[index] = f"dropped/{reason}"

    @rule(choice=CHOICE)
    def put_back(self, choice: int) -> None:
        index = self.pick(choice, "in_flight", "buffered", "in_training")
        if index is not None:
            self.ledger.put_back(index)
            self.model[index] = "waiting"

    @rule(choice=CHOICE)
    def retry(self, choice: int) -> None:
        index = self.pick(choice, "in_flight", "buffered")
        if index is not None:
            self.ledger.retry(index)
            self.model[index] = "waiting"
            self.retries[index] += 1
            assert self.ledger.retries(index) == self.retries[index]

    @rule(choice=CHOICE, verb=st.sampled_from(["buffer", "start_training", "put_back", "retry", "drop"]))
    def refuse(self, choice: int, verb: str) -> None:
        settled = self.pick(choice, "trained", *(f"dropped/{reason}" for reason in DropReason))
        index = len(self.model) + choice if settled is None else settled
        arguments = {"drop": (index, DropReason.STALE), "buffer": (group(index),)}.get(verb, (index,))
        with pytest.raises(RolloutError, match=f"group {index} cannot"):
            getattr(self.ledger, verb)(*arguments)

    @rule(keeps=st.booleans())
    def save_and_restore(self, keeps: bool) -> None:
        snapshot, finished = json.loads(json.dumps(self.ledger.snapshot())), self.ledger.finished()
        self.ledger = Ledger.restore(snapshot, finished if keeps else None)
        after = {"in_flight": "waiting", "buffered": "buffered", "in_training": "buffered"}
        if not keeps:
            after = dict.fromkeys(after, "waiting")
        self.model = {index: after.get(state, state) for index, state in self.model.items()}
        for index, state in self.model.items():
            if state in ("waiting", "buffered"):
                assert self.ledger.retries(index) == self.retries[index]

    @invariant()
    def counts_agree(self) -> None:
        self.ledger.verify()
        counts = Counter(self.model.values())
        rows = self.ledger.counts()
        assert rows.pop("ledger/issued") == len(self.model)
        assert rows == {name: counts[name.removeprefix("ledger/")] for name in rows}
        assert sum(rows.values()) == len(self.model)
        assert self.ledger.issued == len(self.model)
        assert [group.index for group in self.ledger.finished()] == self.finished()


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedgerAgainstModel = LedgerMachine.TestCase


@given(st.integers(min_value=1, max_value=300))
@settings(max_examples=20, deadline=None)
def test_settled_groups_take_no_memory(num_groups: int) -> None:
    ledger = Ledger()
    for _ in range(num_groups):
        index = ledger.reserve()
        ledger.buffer(group(index))
        ledger.start_training(index)
        ledger.mark_trained(Rollout(0, (group(index),)))
    assert (ledger._state, ledger._waiting, ledger._finished, ledger._retries) == ({}, [], {}, {})
    assert ledger.counts()["ledger/trained"] == num_groups


def test_an_illegal_step_says_where_the_group_is() -> None:
    ledger = Ledger()
    index = ledger.reserve()
    with pytest.raises(RolloutError, match="group 0 cannot go into training: it is in_flight, not buffered"):
        ledger.start_training(index)
    with pytest.raises(RolloutError, match="group 9 cannot be buffered: it is not issued"):
        ledger.buffer(group(9))
    assert ledger.state(index) is GroupState.IN_FLIGHT


@pytest.mark.parametrize(
    "damage",
    [
        {"issued": 7},
        {"issued": "many"},
        {"waiting": [0, 0]},
        {"waiting": [0, 99]},
        {"waiting": None},
        {"trained": -1},
        {"dropped": {"bored": 1}},
        {"dropped": [1]},
        {"finished": [0, 0]},
        {"finished": None},
        {"retries": {"x": 1}},
        {"retries": 4},
    ],
)
def test_a_damaged_snapshot_is_refused(damage: dict[str, object]) -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.reserve()
    ledger.drop(1, DropReason.STALE)
    snapshot = ledger.snapshot()
    assert Ledger.restore(snapshot).reserve() == 0
    with pytest.raises(CheckpointError, match="ledger of the checkpoint"):
        Ledger.restore(snapshot | damage)
    with pytest.raises(CheckpointError, match="cannot be read"):
        Ledger.restore({key: value for key, value in snapshot.items() if key not in damage})


@pytest.mark.parametrize("there", [[], [0], [1, 0], [0, 1, 2]])
def test_finished_groups_that_are_not_the_ledgers_are_refused(there: list[int]) -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.reserve()
    for index in range(2):
        ledger.buffer(group(index))
    with pytest.raises(CheckpointError, match="2 finished groups.*--accept-missing-state"):
        Ledger.restore(ledger.snapshot(), [group(index) for index in there])


def test_a_ledger_that_does_not_add_up_is_found() -> None:
    ledger = Ledger()
    ledger.reserve()
    ledger._issued = 5
    with pytest.raises(RolloutError, match="does not add up"):
        ledger.verify()
