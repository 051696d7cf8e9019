"""A rollout function of your own, from the contract alone: groups are sampled four at a time, and failed ones dropped at once.

    miles train --preset reverse --rollout-function-path in_waves:InWaves

The ledger is the record that checkpoints keep: ``reserve`` a prompt, then ``buffer`` the finished group or ``drop`` it, and
``start_training`` for what the step consumes; the loop marks it trained. What is in flight when a call ends early is
``put_back``.
"""

import asyncio

from miles.rollout.contracts import RolloutFnInput
from miles.rollout.ledger import DropReason
from miles.types import Group, Prompt, Rollout

WAVE = 4


class InWaves:
    """Built once per run with everything it may need."""

    takes_finished_groups = True  # else miles samples the finished groups of a resumed run again

    def __init__(self, given: RolloutFnInput) -> None:
        self._given = given
        self._batch_size = given.config.data.rollout_batch_size
        self._version = given.weight_version
        self._accepted: list[Group] = list(given.ledger.finished())

    async def __call__(self, rollout_id: int, weight_version: int) -> Rollout:
        """The next batch, in index order."""
        while len(self._accepted) < self._batch_size:
            await self._wave(min(WAVE, self._batch_size - len(self._accepted)))
        batch, self._accepted = self._accepted[: self._batch_size], self._accepted[self._batch_size :]
        for group in batch:
            self._given.ledger.start_training(group.index)
        return Rollout(rollout_id, tuple(sorted(batch, key=lambda group: group.index)))

    async def _wave(self, size: int) -> None:
        prompts = [self._given.source.reserve(self._given.ledger) for _ in range(size)]
        await asyncio.gather(*(self._sample(prompt) for prompt in prompts))

    async def _sample(self, prompt: Prompt) -> None:
        ledger = self._given.ledger
        try:
            group = await self._given.generate_group(prompt, self._version)
        except TimeoutError:
            ledger.drop(prompt.index, DropReason.ABORTED)
            return
        except BaseException:
            ledger.put_back(prompt.index)
            raise
        ledger.buffer(group)
        self._accepted.append(group)

    def published(self, version: int) -> None:
        """Groups from now on are sampled under ``version``."""
        self._version = version

    async def pause(self) -> None:
        """Nothing runs between calls."""

    def resume(self) -> None:
        """Nothing was held."""

    async def close(self) -> None:
        """Nothing was started."""
