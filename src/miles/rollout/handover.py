"""The last step of every rollout function: a batch goes into training, filtered and measured."""

from collections.abc import Callable, Sequence

from miles.config.dotted import load_dotted
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.filters import SampleFilter, mask_samples
from miles.rollout.histograms import length_histogram, lengths_of
from miles.rollout.metrics import batch_metrics, dropped_metrics
from miles.types import Group, Metrics, Rollout


class Handover:
    """Turns accepted groups into the rollout of a step; remembers what was dropped up to the one before."""

    def __init__(self, given: RolloutFnInput) -> None:
        self._ledger = given.ledger
        self._dropped, self._num_retries = given.ledger.dropped(), given.ledger.num_retries
        path = given.config.rollout.rollout_sample_filter_path
        self._filter: SampleFilter | None = (
            load_dotted(path, "rollout_sample_filter_path", kind="sample_filter") if path else None
        )

    def hand_over(
        self,
        rollout_id: int,
        groups: Sequence[Group],
        more: Metrics | None = None,
        mask: Callable[[Group], Group] | None = None,
    ) -> Rollout:
        """Buffered → in training, in index order; ``mask`` and the sample filter take tokens out of the loss.

        Raises:
            RolloutError: the sample filter failed, or the ledger does not add up.
        """
        batch = tuple(sorted(groups, key=lambda group: group.index))
        for group in batch:
            self._ledger.start_training(group.index)
        self._ledger.verify()
        if mask is not None:
            batch = tuple(map(mask, batch))
        if self._filter is not None:
            batch = mask_samples(self._filter, batch)
        lengths = length_histogram("rollout/kept/response_len", lengths_of(batch))
        return Rollout(rollout_id, batch, batch_metrics(batch) | lengths | self._since_the_last() | (more or {}))

    def _since_the_last(self) -> Metrics:
        before, self._dropped = self._dropped, self._ledger.dropped()
        retries, self._num_retries = self._num_retries, self._ledger.num_retries
        return dropped_metrics(before, self._dropped) | {"rollout/retried": float(self._num_retries - retries)}
