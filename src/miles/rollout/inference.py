"""The standard rollout function: starts one batch of groups together and waits for all of them.

    rollout k:  slot 0  ═══ group 0 ═══│                         a slot whose group is dropped takes the next
                slot 1  ═ group 1 ═ ✗ ═══ group 3 ═══│           one in index order, until each slot has an
                slot 2  ═════ group 2 ═════│                     accepted group; then the rollout is handed over

Sync calls it between steps; one step off calls it for rollout k+1 while step k trains. With --over-sampling-batch-size there are
more slots than a rollout needs: the first accepted groups are used, those still in flight then wait and are sampled later, which
favours short answers. With --partial-rollout they are stopped instead and keep what they have: the next rollouts go on with it,
and groups that finished beside the batch are in the next one.
"""

import asyncio
from functools import partial

from miles.errors import RolloutError
from miles.failures import first_failure
from miles.rollout.attempts import Attempts
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.handover import Handover
from miles.rollout.masking import masked_metrics, old_token_metrics, without_old_tokens
from miles.rollout.progress import ProgressWatch
from miles.types import Group, Rollout

STOP_AGAIN_SECONDS = 0.05


class InferenceRolloutFn:
    """One batch of groups per call, all concurrently; groups that a resumed run brings along are used first."""

    takes_finished_groups = True

    def __init__(self, given: RolloutFnInput) -> None:
        self._batch_size = given.config.data.rollout_batch_size
        over = getattr(given.config.rollout, "over_sampling_batch_size", None)
        self._num_slots: int = over or self._batch_size
        self._keeps_unfinished: bool = getattr(given.config.rollout, "partial_rollout", False)
        self._masks_old: bool = getattr(given.config.rollout, "mask_offpolicy_in_partial_rollout", False)
        self._version = given.weight_version
        self._ledger, self._interrupt = given.ledger, given.interrupt
        self._attempts, self._handover = Attempts(given), Handover(given)
        self._watch = ProgressWatch(given.clock, given.config.rollout.no_progress_seconds, given.say, self._describe)
        self._accepted: list[Group] = []
        self._carried = sorted(given.ledger.finished(), key=lambda group: group.index)
        self._running = asyncio.Event()
        self._running.set()

    async def __call__(self, rollout_id: int, weight_version: int) -> Rollout:
        """The next ``rollout_batch_size`` accepted groups.

        Raises:
            RolloutError: a group failed; its siblings were cancelled and are waiting again.
        """
        self._accepted, self._carried = self._carried[: self._batch_size], self._carried[self._batch_size :]
        self._watch.moved()
        try:
            await self._fill_slots()
        except BaseException as error:
            for group in self._accepted:
                self._ledger.put_back(group.index)
            if isinstance(error, BaseExceptionGroup):
                cause = first_failure(error)
                raise RolloutError(f"rollout {rollout_id} failed: {cause}") from cause
            raise
        return self._hand_over(rollout_id)

    def published(self, version: int) -> None:
        """Groups started from now on count from ``version``."""
        self._version = version

    async def pause(self) -> None:
        """Start no further group; those in flight go on."""
        self._running.clear()

    def resume(self) -> None:
        """Start groups again."""
        self._running.set()

    async def close(self) -> None:
        """Nothing outlives a call; whoever awaits one ends it by cancelling."""

    async def _fill_slots(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch.run())
            if not self._is_full:
                slots = [tasks.create_task(self._fill_slot()) for _ in range(self._num_slots - len(self._accepted))]
                await self._until_full(slots)
                if self._keeps_unfinished:
                    await self._until_stopped(slots)
                for slot in slots:
                    slot.cancel()
            watching.cancel()

    @property
    def _is_full(self) -> bool:
        return len(self._accepted) >= self._batch_size

    async def _until_full(self, slots: list["asyncio.Task[None]"]) -> None:
        """Wait until there are enough groups; a slot that fails ends the wait through the task group."""
        waiting: set[asyncio.Task[None]] = set(slots)
        while waiting and not self._is_full:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    async def _until_stopped(self, slots: list["asyncio.Task[None]"]) -> None:
        """Stop what is in flight, so that it keeps its tokens; again, since a request may reach its engine after the stop."""
        waiting = {slot for slot in slots if not slot.done()}
        self._attempts.flights.interrupt()
        while waiting:
            await self._interrupt()
            _, waiting = await asyncio.wait(waiting, timeout=STOP_AGAIN_SECONDS)

    def _hand_over(self, rollout_id: int) -> Rollout:
        if not self._keeps_unfinished:
            return self._handover.hand_over(rollout_id, self._accepted)
        version, more = self._version, {"rollout/partial/num_groups": float(self._ledger.num_unfinished)}
        more |= masked_metrics(self._accepted, version) if self._masks_old else old_token_metrics(self._accepted, version)
        mask = partial(without_old_tokens, oldest=version) if self._masks_old else None
        return self._handover.hand_over(rollout_id, self._accepted, more, mask)

    async def _fill_slot(self) -> None:
        group = None
        while group is None and not self._is_full:
            await self._running.wait()
            flight = self._attempts.begin(self._version)
            group = await self._attempts.run(flight)
            self._watch.moved()
        if group is None:
            return
        if not self._is_full:
            self._accepted.append(group)
        elif self._keeps_unfinished:
            self._carried.append(group)
        else:  # another slot was faster in the same moment
            self._ledger.put_back(group.index)

    def _describe(self) -> str:
        paused = "" if self._running.is_set() else "; production is paused"
        done = f"{len(self._accepted)} of {self._batch_size} groups accepted"
        return f"the policy waits for the engines: {done}, {self._attempts.flights.describe()}{paused}"
