"""The trainer ranks, as far as the arithmetic needs them: sums over all of them.

Loss normaliser, loss and metrics are sums over the global batch; a trainer sums its own part and asks its ranks for the whole.
"""

from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    """What a trainer knows of the others."""

    index: int
    size: int

    def sum(self, values: Tensor) -> Tensor:
        """Elementwise sum over all ranks; every rank must call it, in the same order."""
        ...


class OneRank:
    """A policy on one rank."""

    index = 0
    size = 1

    def sum(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values
