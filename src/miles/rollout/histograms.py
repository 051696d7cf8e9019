"""Histograms as flat metrics, and a warning when the answers that are kept differ in length from those that are not.

A discarded group is a long one more often than not: who trains on what is left trains on shorter answers.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from miles.types import Group, Metrics

LEAST_SAMPLES = 64
SIGNIFICANT = 4.0  # standard errors
NOTABLE = 0.05  # of the kept answers' mean


def staleness_histogram(prefix: str, lags: Iterable[int]) -> Metrics:
    """``prefix/<lag>``: groups of each staleness that occurs, in versions."""
    return {f"{prefix}/{lag}": float(number) for lag, number in sorted(Counter(lags).items())}


def length_histogram(prefix: str, lengths: Iterable[int]) -> Metrics:
    """``prefix/<n>``: samples of n to 2n − 1 response tokens, n a power of two (0: empty), where there are any."""
    floors = Counter(0 if length == 0 else 1 << (length.bit_length() - 1) for length in lengths)
    return {f"{prefix}/{floor}": float(number) for floor, number in sorted(floors.items())}


def lengths_of(groups: Sequence[Group]) -> list[int]:
    """Response tokens of every sample."""
    return [len(sample.response_ids) for group in groups for sample in group.samples]


@dataclass(slots=True)
class Moments:
    """Count, sum and sum of squares of lengths, in tokens."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, lengths: Iterable[int]) -> None:
        """Add lengths."""
        for length in lengths:
            self.count, self.total, self.squares = self.count + 1, self.total + length, self.squares + length**2

    @property
    def mean(self) -> float:
        """Mean length."""
        return self.total / max(self.count, 1)

    @property
    def error(self) -> float:
        """Squared standard error of the mean."""
        return max(self.squares / max(self.count, 1) - self.mean**2, 0.0) / max(self.count, 1)


@dataclass(slots=True)
class LengthWatch:
    """Compares the lengths of kept and discarded groups over the run."""

    kept: Moments = field(default_factory=Moments)
    discarded: Moments = field(default_factory=Moments)
    _has_warned: bool = False

    def warning(self) -> str:
        """A sentence, once, when the means differ by more than chance (Welch's statistic) and by more than a twentieth."""
        kept, discarded = self.kept, self.discarded
        if self._has_warned or min(kept.count, discarded.count) < LEAST_SAMPLES:
            return ""
        difference = discarded.mean - kept.mean
        if abs(difference) <= max(SIGNIFICANT * math.sqrt(kept.error + discarded.error), NOTABLE * kept.mean):
            return ""
        self._has_warned = True
        return (
            f"the {discarded.count} answers discarded as too old have {discarded.mean:.0f} tokens on average, the {kept.count} "
            f"kept ones {kept.mean:.0f}: what is trained on is biased in length. `--staleness-control pace` discards nothing"
        )
