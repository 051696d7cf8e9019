"""``--rollout-api function``: a plain function in the place of a rollout class, for sync and one step off.

    async def my_rollout(given: RolloutFnInput, rollout_id: int, weight_version: int) -> Sequence[Group]: ...

It takes prompts with ``given.source.reserve(given.ledger)`` and may use ``given.generate_group``. What it returns goes into
training; a group it reserved and does not return has to be dropped or put back in the ledger by the function.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from miles.errors import RolloutError
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.handover import Handover
from miles.rollout.ledger import GroupState
from miles.types import Group, Rollout

PlainRolloutFn = Callable[[RolloutFnInput, int, int], Awaitable[Sequence[Group]]]


class FunctionRolloutFn:
    """Calls the function once per training step."""

    def __init__(self, function: PlainRolloutFn, given: RolloutFnInput) -> None:
        self._function, self._given, self._handover = function, given, Handover(given)

    async def __call__(self, rollout_id: int, weight_version: int) -> Rollout:
        """What the function returned, as the rollout of this step.

        Raises:
            RolloutError: it returned something else than ``rollout_batch_size`` groups.
        """
        groups: Any = await self._function(self._given, rollout_id, weight_version)
        wanted = self._given.config.data.rollout_batch_size
        if not isinstance(groups, Sequence) or len(groups) != wanted or not all(isinstance(group, Group) for group in groups):
            raise RolloutError(
                f"the rollout function returned {str(groups)[:80]!r} for rollout {rollout_id}, not {wanted} groups "
                "(--rollout-function-path, --rollout-batch-size)"
            )
        for group in groups:
            if self._given.ledger.state(group.index) is GroupState.IN_FLIGHT:
                self._given.ledger.buffer(group.index)
        return self._handover.hand_over(rollout_id, groups)

    def published(self, version: int) -> None:
        """The function is told the policy's version at its next call."""

    async def pause(self) -> None:
        """The function runs only while a rollout is awaited."""

    def resume(self) -> None:
        """Nothing was paused."""

    async def close(self) -> None:
        """Nothing was started."""
