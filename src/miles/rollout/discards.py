"""Finished groups that turn out too old when the policy takes them (``--staleness-control filter``): set aside and measured."""

from collections.abc import Callable, Sequence

from miles.rollout.contracts import RolloutFnInput
from miles.rollout.histograms import LengthWatch, length_histogram, lengths_of, staleness_histogram
from miles.rollout.ledger import DropReason
from miles.rollout.unused import UnusedGroups
from miles.types import Group, Metrics, staleness


class Discards:
    """What was rejected since the last batch, and over the run how its lengths compare with those of what was kept."""

    def __init__(self, given: RolloutFnInput) -> None:
        self._unused, self._say = UnusedGroups(given), given.say
        self._lengths = LengthWatch()
        self._rejected: list[Group] = []
        self._lags: list[int] = []

    def sift(self, groups: Sequence[Group], policy_version: int, is_too_old: Callable[[Group, int], bool]) -> list[Group]:
        """The groups that may be trained on; the others go back to waiting or are dropped as stale."""
        fresh = []
        for group in groups:
            if is_too_old(group, policy_version):
                self._unused.set_aside(group.index, DropReason.STALE)
                self._rejected.append(group)
                self._lags.append(staleness(policy_version, group))
            else:
                fresh.append(group)
        return fresh

    def metrics(self, kept: Sequence[Group]) -> Metrics:
        """Count, staleness and lengths of the groups rejected since the last batch, of which ``kept`` were taken.

        ``rollout/rejected/num_groups``, ``rollout/rejected/staleness/<lag>``, ``rollout/rejected/response_len/<floor>``;
        ``rollout/kept/response_len/<floor>`` of every rollout stands beside it.
        """
        rejected, lags = self._rejected, self._lags
        self._rejected, self._lags = [], []
        self._lengths.kept.add(lengths_of(kept))
        self._lengths.discarded.add(lengths_of(rejected))
        if warning := self._lengths.warning():
            self._say(f"warning: {warning}")
        return (
            {"rollout/rejected/num_groups": float(len(rejected))}
            | staleness_histogram("rollout/rejected/staleness", lags)
            | length_histogram("rollout/rejected/response_len", lengths_of(rejected))
        )
