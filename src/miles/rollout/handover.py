"""The last step of every rollout function: a batch goes into training, filtered and measured."""

from collections.abc import Sequence

from miles.config.dotted import load_dotted
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.filters import SampleFilter, mask_samples
from miles.rollout.metrics import batch_metrics, dropped_metrics
from miles.types import Group, Metrics, Rollout


class Handover:
    """Turns accepted groups into the rollout of a step; remembers what was dropped up to the one before."""

    def __init__(self, given: RolloutFnInput) -> None:
        self._ledger = given.ledger
        self._dropped = given.ledger.dropped()
        path = given.config.rollout.rollout_sample_filter_path
        self._filter: SampleFilter | None = (
            load_dotted(path, "rollout_sample_filter_path", kind="sample_filter") if path else None
        )

    def hand_over(self, rollout_id: int, groups: Sequence[Group], more: Metrics | None = None) -> Rollout:
        """Buffered → in training, in index order.

        Raises:
            RolloutError: the sample filter failed, or the ledger does not add up.
        """
        batch = tuple(sorted(groups, key=lambda group: group.index))
        for group in batch:
            self._ledger.start_training(group.index)
        self._ledger.verify()
        if self._filter is not None:
            batch = mask_samples(self._filter, batch)
        before, self._dropped = self._dropped, self._ledger.dropped()
        return Rollout(rollout_id, batch, batch_metrics(batch) | dropped_metrics(before, self._dropped) | (more or {}))
