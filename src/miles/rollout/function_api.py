"""Rollouts made by a function instead of a class (``--rollout-api function``), for sync and one step off.

    async def rollout(given: RolloutFnInput, rollout_id: int, weight_version: int) -> Sequence[Group]

It takes its prompts with ``given.source.reserve(given.ledger)``, samples with ``given.generate_group(prompt, version)`` and
returns ``rollout_batch_size`` groups. The ledger is kept for it: what it returns goes into training, every other prompt that it
took waits again. A plain function runs in a thread and reserves and returns in the same way; it samples by means of its own.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence

from miles.errors import RolloutError
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.handover import Handover
from miles.rollout.ledger import GroupState
from miles.types import Group, Rollout

RolloutFunction = Callable[[RolloutFnInput, int, int], Sequence[Group] | Awaitable[Sequence[Group]]]


class FunctionRolloutFn:
    """Adapts a function to the contract of classes."""

    def __init__(self, function: RolloutFunction, given: RolloutFnInput) -> None:
        self._function, self._given = function, given
        self._handover = Handover(given)
        self._running = asyncio.Event()
        self._running.set()

    async def __call__(self, rollout_id: int, weight_version: int) -> Rollout:
        """What the function returned for this rollout.

        Raises:
            RolloutError: it failed, or did not return the groups of ``rollout_batch_size`` prompts that it took.
        """
        await self._running.wait()
        ledger = self._given.ledger
        try:
            groups = await self._call(rollout_id, weight_version)
            for group in groups:
                ledger.buffer(group)
            return self._handover.hand_over(rollout_id, groups)
        finally:
            for index in ledger.in_flight():
                ledger.put_back(index)

    def published(self, version: int) -> None:
        """The next call is told."""

    async def pause(self) -> None:
        """Hold the next call back; one that runs goes on."""
        self._running.clear()

    def resume(self) -> None:
        """Let calls begin again."""
        self._running.set()

    async def close(self) -> None:
        """Nothing outlives a call."""

    async def _call(self, rollout_id: int, weight_version: int) -> list[Group]:
        try:
            if inspect.iscoroutinefunction(self._function):
                made: object = await self._function(self._given, rollout_id, weight_version)
            else:
                made = await asyncio.to_thread(self._function, self._given, rollout_id, weight_version)
        except Exception as error:
            raise RolloutError(f"the rollout function failed at rollout {rollout_id}: {error!r}") from error
        return self._checked(made, rollout_id)

    def _checked(self, made: object, rollout_id: int) -> list[Group]:
        wanted = self._given.config.data.rollout_batch_size
        groups = [group for group in made if isinstance(group, Group)] if isinstance(made, Sequence) else []
        taken = [self._given.ledger.state(group.index) is GroupState.IN_FLIGHT for group in groups]
        if len(groups) != wanted or not all(taken) or len({group.index for group in groups}) != wanted:
            raise RolloutError(
                f"the rollout function returned {str(made)[:80]} for rollout {rollout_id}. Return {wanted} groups, each of "
                "another prompt taken with given.source.reserve(given.ledger)"
            )
        return groups
