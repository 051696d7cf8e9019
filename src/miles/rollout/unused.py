"""Groups that were sampled and cannot be used: sampled again while their budget lasts, or dropped with a reason.

A group comes here when it timed out or was aborted, when none of its samples got a reward, or, under
``--staleness-control filter``, when it is too old. What a dynamic filter rejects is dropped at once: it did not fail.
"""

from miles.config.options.rollout import FullyAsync
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.ledger import DropReason


class UnusedGroups:
    """``--async-unused-samples-handler`` (``retry`` in the other schedules) with ``--max-group-retries``."""

    def __init__(self, given: RolloutFnInput) -> None:
        options = given.config.rollout
        self._ledger = given.ledger
        drops = isinstance(options, FullyAsync) and options.async_unused_samples_handler == "drop"
        self._budget = 0 if drops else options.max_group_retries

    def set_aside(self, index: int, reason: DropReason) -> bool:
        """In flight or buffered → waiting, or dropped: for ``reason``, or because its retries are used up.

        Returns:
            Whether it will be sampled again.
        """
        used = self._ledger.retries(index)
        is_retried = used < self._budget
        if is_retried:
            self._ledger.retry(index)
        else:
            self._ledger.drop(index, DropReason.RETRIES_EXHAUSTED if used else reason)
        return is_retried
