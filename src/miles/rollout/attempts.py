"""One attempt at one group, from its reservation to accepted, dropped or back to waiting; the same in every schedule.

begin: reserve, in flight ──► run: generate, score, judge ──► accepted: buffered
                                        │                 ├─► filtered: dropped
                                        │                 ├─► aborted or no reward at all: back to waiting, or dropped
                                        │                 └─► interrupted: back to waiting, with what was sampled
                                        └─ any error, a cancellation or recall() ──► back to waiting
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from miles.clock import Clock
from miles.config.dotted import load_dotted
from miles.errors import RolloutError
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.filters import DynamicFilter, keeps
from miles.rollout.ledger import DropReason
from miles.rollout.notices import Notices
from miles.rollout.partial import is_finished
from miles.rollout.unused import UnusedGroups
from miles.types import Group, Prompt, SampleStatus

FILTERED_IN_A_ROW_BATCHES = 64
REMEDIES: Mapping[DropReason, str] = {
    DropReason.DYNAMIC_FILTER: "Loosen --dynamic-sampling-filter-path, or take prompts of another difficulty",
    DropReason.ABORTED: "Raise --rollout-timeout-seconds, or see whether the engines answer at all",
    DropReason.REWARD_FAILED: "Mend the reward function (--custom-rm-path)",
}


@dataclass(eq=False, slots=True)
class Flight:
    """A group in flight.

    version: of its oldest token, or at its admission. began_seconds: on the run's clock.
    begun: what was sampled of it before. interrupted: it is to return as it is.
    """

    prompt: Prompt
    version: int
    began_seconds: float
    begun: Group | None = None
    interrupted: bool = False
    task: "asyncio.Task[None] | None" = None


class Flights:
    """The groups in flight, in order of their start."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._flights: dict[int, Flight] = {}
        self._versions: Counter[int] = Counter()

    def __len__(self) -> int:
        """Groups in flight."""
        return len(self._flights)

    def __contains__(self, flight: Flight) -> bool:
        """Whether this very attempt is still under way."""
        return self._flights.get(flight.prompt.index) is flight

    def add(self, flight: Flight) -> None:
        """It has started."""
        self._flights[flight.prompt.index] = flight
        self._versions[flight.version] += 1

    def remove(self, flight: Flight) -> None:
        """It has ended."""
        del self._flights[flight.prompt.index]
        self._versions[flight.version] -= 1
        if not self._versions[flight.version]:
            del self._versions[flight.version]

    def counts_by_version(self) -> Mapping[int, int]:
        """Groups in flight by the version at admission."""
        return self._versions

    def oldest(self, number: int) -> list[Flight]:
        """So many flights, oldest version first, then by index."""
        return heapq.nsmallest(number, self._flights.values(), key=lambda flight: (flight.version, flight.prompt.index))

    def interrupt(self) -> None:
        """All of them are to return as they are."""
        for flight in self._flights.values():
            flight.interrupted = True

    def describe(self) -> str:
        """How many, and the oldest one's age."""
        if not self._flights:
            return "no group in flight"
        first = next(iter(self._flights.values()))
        age = self._clock.now() - first.began_seconds
        oldest = f"the oldest is group {first.prompt.index}, for {age:.0f} s, since version {first.version}"
        return f"{len(self)} groups in flight, {oldest}"


class DropStreak:
    """Gives up when nothing but dropped groups comes out, so that a run with a broken part ends rather than spins."""

    def __init__(self, batch_size: int) -> None:
        patience = max(8, batch_size)
        self._limits = dict.fromkeys(DropReason, patience) | {DropReason.DYNAMIC_FILTER: FILTERED_IN_A_ROW_BATCHES * batch_size}
        self._streak: Counter[DropReason] = Counter()

    def accepted(self) -> None:
        """A group was accepted."""
        self._streak.clear()

    def dropped(self, reason: DropReason, detail: str) -> None:
        """A group was dropped.

        Raises:
            RolloutError: it was one too many in a row.
        """
        self._streak[reason] += 1
        if self._streak[reason] >= self._limits[reason]:
            remedy = REMEDIES.get(reason, "See the metrics rollout/dropped/…")
            raise RolloutError(
                f"{self._streak[reason]} groups were dropped ({reason}) and none was accepted; the last: {detail}. {remedy}"
            )


class Attempts:
    """Begins and runs attempts, and keeps ledger and flights in step with them."""

    def __init__(self, given: RolloutFnInput) -> None:
        self._source, self._ledger, self._generate_group = given.source, given.ledger, given.generate_group
        self._clock, self._unused, self._notices = given.clock, UnusedGroups(given), Notices(given.say)
        self._continues = getattr(given.config.rollout, "partial_rollout", False)
        self._streak = DropStreak(given.config.data.rollout_batch_size)
        path = given.config.rollout.dynamic_sampling_filter_path
        self._filter: DynamicFilter | None = load_dotted(path, "dynamic_sampling_filter_path", kind="filter") if path else None
        self.flights = Flights(given.clock)

    def begin(self, version: int) -> Flight:
        """Reserve the next group under the published ``version``; one that was begun keeps the version it began under."""
        prompt = self._source.reserve(self._ledger)
        begun = self._ledger.unfinished(prompt.index) if self._continues else None
        flight = Flight(prompt, begun.version_admitted if begun else version, self._clock.now(), begun)
        self.flights.add(flight)
        return flight

    async def run(self, flight: Flight) -> Group | None:
        """The accepted group, which is buffered in the ledger; None if it was dropped, or waits to be sampled again or further.

        Raises:
            RolloutError: a filter failed, or nothing but dropped groups came for long.
            EngineError: an engine failed.
        """
        try:
            group, reason, detail = await self._judged(flight)
            if group is not None and flight.interrupted and not is_finished(group):
                self.flights.remove(flight)
                self._ledger.suspend(group)
                return None
            self._settle(flight, group, reason, detail)
        finally:
            self.recall(flight)
        return None if reason else group

    def recall(self, flight: Flight) -> None:
        """Send a group back to waiting, if this attempt is still under way, and end its task."""
        if flight in self.flights:
            self.flights.remove(flight)
            self._ledger.put_back(flight.prompt.index)
            if flight.task is not None and flight.task is not asyncio.current_task():
                flight.task.cancel()

    async def _judged(self, flight: Flight) -> tuple[Group | None, DropReason | None, str]:
        try:
            group = await self._generated(flight)
        except TimeoutError as error:
            return None, DropReason.ABORTED, str(error)
        return group, *judge(group, self._filter)

    async def _generated(self, flight: Flight) -> Group:
        if flight.begun is None:
            return await self._generate_group(flight.prompt, flight.version)
        return await self._generate_group(flight.prompt, flight.version, flight.begun)

    def _settle(self, flight: Flight, group: Group | None, reason: DropReason | None, detail: str) -> None:
        self.flights.remove(flight)
        if reason is not None:
            self._refuse(flight.prompt.index, reason, detail)
        elif group is not None:
            self._ledger.buffer(group)
            self._streak.accepted()
            self._notices.accepted(group)

    def _refuse(self, index: int, reason: DropReason, detail: str) -> None:
        if reason is DropReason.DYNAMIC_FILTER:
            self._ledger.drop(index, reason)
        else:
            again = self._unused.set_aside(index, reason)
            self._notices.refused(index, reason, detail, again=again)
            if again:
                return
        self._streak.dropped(reason, detail)


def judge(group: Group, dynamic_filter: DynamicFilter | None) -> tuple[DropReason | None, str]:
    """Why a finished group is not used, and in what words; None if it is used."""
    if any(sample.status is SampleStatus.ABORTED for sample in group.samples):
        return DropReason.ABORTED, f"the engine aborted group {group.index}"
    if all(sample.reward is None for sample in group.samples):
        return DropReason.REWARD_FAILED, str(group.samples[0].metadata.get("reward_error", "no sample got a reward"))
    if dynamic_filter is not None and not keeps(dynamic_filter, group):
        return DropReason.DYNAMIC_FILTER, f"group {group.index} was rejected"
    return None, ""
