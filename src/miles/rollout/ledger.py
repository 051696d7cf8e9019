"""The ledger: the one record of where every prompt group is.

    reserve          buffer           start_training       mark_trained
    ──────► in flight ──────► buffered ──────► in training ──────► trained (counted, then forgotten)
       ▲        │                │                  │
    waiting ◄───┴── put_back ────┴──────────────────┘        drop(reason): waiting, in flight or buffered ──► dropped
                    retry (counted), suspend (with what is sampled so far)

At any moment ``issued = waiting + in flight + buffered + in training + trained + dropped``. A group's identity is its
index in the order of issue, so no prompt is lost and none is trained twice. Finished groups are kept here with their
samples until they are trained, and unfinished ones until they are finished, so that a checkpoint holds them. Memory is bounded
by the groups alive.
"""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from miles.errors import CheckpointError, RolloutError
from miles.types import Group, Metrics, Rollout


class GroupState(StrEnum):
    """Where a group that is not settled is."""

    WAITING = "waiting"
    IN_FLIGHT = "in_flight"
    BUFFERED = "buffered"
    IN_TRAINING = "in_training"


class DropReason(StrEnum):
    """Why a group was dropped."""

    DYNAMIC_FILTER = "dynamic_filter"
    ABORTED = "aborted"
    REWARD_FAILED = "reward_failed"
    STALE = "stale"
    RETRIES_EXHAUSTED = "retries_exhausted"


ALIVE: Final = frozenset({GroupState.IN_FLIGHT, GroupState.BUFFERED, GroupState.IN_TRAINING})
DROPPABLE: Final = frozenset({GroupState.WAITING, GroupState.IN_FLIGHT, GroupState.BUFFERED})


class Ledger:
    """Checked transitions of groups, named by their index; each takes constant time (waiting groups: a heap)."""

    def __init__(self) -> None:
        self._issued = 0
        self._trained = 0
        self._dropped: Counter[DropReason] = Counter()
        self._state: dict[int, GroupState] = {}
        self._sizes: Counter[GroupState] = Counter()
        self._waiting: list[int] = []
        self._finished: dict[int, Group] = {}
        self._unfinished: dict[int, Group] = {}
        self._retries: Counter[int] = Counter()
        self._num_retries = 0

    def reserve(self) -> int:
        """Take the lowest waiting group, or issue a new one; it is in flight now. Returns its index."""
        while self._waiting:
            index = heapq.heappop(self._waiting)
            if self._state.get(index) is GroupState.WAITING:
                self._enter(index, GroupState.IN_FLIGHT)
                return index
        self._issued += 1
        self._enter(self._issued - 1, GroupState.IN_FLIGHT)
        return self._issued - 1

    def buffer(self, group: Group) -> None:
        """In flight → buffered: finished and scored."""
        self._require(group.index, frozenset({GroupState.IN_FLIGHT}), "be buffered")
        self._enter(group.index, GroupState.BUFFERED)
        self._finished[group.index] = group
        self._unfinished.pop(group.index, None)

    def start_training(self, index: int) -> None:
        """Buffered → in training: the policy has taken it."""
        self._require(index, frozenset({GroupState.BUFFERED}), "go into training")
        self._enter(index, GroupState.IN_TRAINING)

    def mark_trained(self, rollout: Rollout) -> None:
        """In training → trained, for every group of the rollout: the policy took its steps on them."""
        for group in rollout.groups:
            self._require(group.index, frozenset({GroupState.IN_TRAINING}), "be trained")
            self._settle(group.index)
            self._trained += 1

    def drop(self, index: int, reason: DropReason) -> None:
        """Waiting, in flight or buffered → dropped, for a reason that is counted."""
        self._require(index, DROPPABLE, "be dropped")
        self._settle(index)
        self._dropped[reason] += 1

    def put_back(self, index: int) -> None:
        """In flight, buffered or in training → waiting: it will be sampled again, under the same index."""
        self._require(index, ALIVE, "go back to waiting")
        self._enter(index, GroupState.WAITING)
        self._finished.pop(index, None)
        heapq.heappush(self._waiting, index)

    def suspend(self, group: Group) -> None:
        """In flight → waiting, with the samples it has so far: they are gone on with when it is reserved again."""
        self._require(group.index, frozenset({GroupState.IN_FLIGHT}), "be suspended")
        self.put_back(group.index)
        self._unfinished[group.index] = group

    def unfinished(self, index: int) -> Group | None:
        """What was sampled of a group before it was suspended; None where nothing was."""
        return self._unfinished.get(index)

    @property
    def num_unfinished(self) -> int:
        """Groups that were suspended and have not finished since."""
        return len(self._unfinished)

    def retry(self, index: int) -> None:
        """``put_back`` after a failure of the group's own, which counts against its budget; its samples so far are lost."""
        self.put_back(index)
        self._unfinished.pop(index, None)
        self._retries[index] += 1
        self._num_retries += 1

    def retries(self, index: int) -> int:
        """How often a group that is not settled was put back for a failure of its own."""
        return self._retries[index]

    @property
    def num_retries(self) -> int:
        """Retries of all groups since the run, or its resumption, began."""
        return self._num_retries

    def finished(self) -> tuple[Group, ...]:
        """Groups buffered or in training, in the order in which they were finished."""
        return tuple(self._finished.values())

    def kept(self) -> tuple[Group, ...]:
        """Groups whose samples a checkpoint holds: the finished ones, then the unfinished ones."""
        return (*self._finished.values(), *self._unfinished.values())

    def in_flight(self) -> list[int]:
        """Groups in flight, in index order."""
        return sorted(index for index, state in self._state.items() if state is GroupState.IN_FLIGHT)

    def state(self, index: int) -> GroupState | None:
        """Where a group is; None when it is trained, dropped or not issued yet."""
        return self._state.get(index)

    @property
    def issued(self) -> int:
        """Groups issued so far; the next new group gets this index."""
        return self._issued

    def dropped(self) -> dict[DropReason, int]:
        """Groups dropped so far, for every reason."""
        return {reason: self._dropped[reason] for reason in DropReason}

    def counts(self) -> Metrics:
        """``ledger/<state>`` and ``ledger/dropped/<reason>``, in groups."""
        rows: Metrics = {"ledger/issued": float(self._issued), "ledger/trained": float(self._trained)}
        rows |= {f"ledger/{state}": float(self._sizes[state]) for state in GroupState}
        return rows | {f"ledger/dropped/{reason}": float(number) for reason, number in self.dropped().items()}

    def verify(self) -> None:
        """Check the identity.

        Raises:
            RolloutError: the counts do not add up, which is a defect of miles.
        """
        alive, settled = self._sizes.total(), self._trained + self._dropped.total()
        if self._issued != alive + settled or alive != len(self._state):
            raise RolloutError(
                f"the ledger does not add up, please report this: {self.counts()}, {len(self._state)} groups known"
            )

    def snapshot(self) -> dict[str, Any]:
        """JSON-able state. Groups in flight are written as waiting; the samples of ``kept()`` go into a file of their own."""
        return {
            "issued": self._issued,
            "trained": self._trained,
            "dropped": {str(reason): number for reason, number in self.dropped().items()},
            "waiting": sorted(self._state.keys() - self._finished.keys()),
            "finished": list(self._finished),
            "unfinished": list(self._unfinished),
            "retries": {str(index): number for index, number in self._retries.items() if number},
        }

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any], kept: Sequence[Group] | None = ()) -> "Ledger":
        """The ledger that ``snapshot`` describes.

        Args:
            snapshot: of another ledger.
            kept: its ``kept()`` groups, of which the finished ones are buffered again; None sends them back to waiting.

        Raises:
            CheckpointError: something is missing, of the wrong kind, or does not add up.
        """
        ledger = cls()
        try:
            ledger._issued, ledger._trained = int(snapshot["issued"]), int(snapshot["trained"])
            ledger._dropped.update({DropReason(reason): int(number) for reason, number in snapshot["dropped"].items()})
            waiting, done = ([int(index) for index in snapshot[state]] for state in ("waiting", "finished"))
            begun = [int(index) for index in snapshot.get("unfinished", ())]
            ledger._retries.update({int(index): int(number) for index, number in snapshot["retries"].items()})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"the ledger of the checkpoint cannot be read ({error!r}). Resume from another checkpoint"
            ) from error
        ledger._fill_waiting([*waiting, *done])
        if kept is not None:
            ledger._fill_kept(done, begun, kept)
        return ledger

    def _fill_kept(self, done: Sequence[int], begun: Sequence[int], kept: Sequence[Group]) -> None:
        if [group.index for group in kept] != [*done, *begun]:
            raise CheckpointError(
                f"the checkpoint's ledger knows {len(done)} finished groups and {len(begun)} unfinished ones, but {len(kept)} or "
                "others are there. Resume from another checkpoint, or pass --accept-missing-state to sample them again"
            )
        known = set(done)
        self._waiting = [index for index in self._waiting if index not in known]
        for group in kept[: len(done)]:
            self._enter(group.index, GroupState.BUFFERED)
            self._finished[group.index] = group
        self._unfinished = {group.index: group for group in kept[len(done) :]}

    def _fill_waiting(self, waiting: Sequence[int]) -> None:
        distinct = set(waiting)
        settled = self._trained + self._dropped.total()
        negative = min([self._trained, *self._dropped.values()]) < 0
        outside = any(not 0 <= index < self._issued for index in distinct)
        if negative or outside or len(distinct) != len(waiting) or self._issued != len(distinct) + settled:
            raise CheckpointError(
                f"the ledger of the checkpoint does not add up: issued {self._issued}, trained {self._trained}, "
                f"dropped {self._dropped.total()}, waiting {len(waiting)}. Resume from another checkpoint"
            )
        for index in sorted(distinct):
            self._enter(index, GroupState.WAITING)
            self._waiting.append(index)

    def _enter(self, index: int, state: GroupState) -> None:
        before = self._state.get(index)
        if before is not None:
            self._sizes[before] -= 1
        self._state[index] = state
        self._sizes[state] += 1

    def _settle(self, index: int) -> None:
        self._sizes[self._state.pop(index)] -= 1
        self._finished.pop(index, None)
        self._unfinished.pop(index, None)
        self._retries.pop(index, None)

    def _require(self, index: int, allowed: frozenset[GroupState], doing: str) -> None:
        state = self._state.get(index)
        if state in allowed:
            return
        where = state or ("trained or dropped already" if 0 <= index < self._issued else "not issued")
        wanted = " or ".join(sorted(allowed))
        raise RolloutError(f"group {index} cannot {doing}: it is {where}, not {wanted}. Each group is handed on exactly once")
