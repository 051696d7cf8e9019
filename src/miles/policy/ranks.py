"""The trainer ranks, as far as the arithmetic needs them: sums over all of them.

Loss normaliser, loss and metrics are sums over the global batch; a trainer sums its own part and asks its ranks for the whole.
"""

from typing import Any, Protocol, TypeVar

import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class Ranks(Protocol):
    """What a trainer knows of the others."""

    index: int
    size: int

    def sum(self, values: Tensor) -> Tensor:
        """Elementwise sum over all ranks; every rank must call it, in the same order."""
        ...

    def wait(self) -> None:
        """Return when every rank has called it."""
        ...

    def from_first(self, value: T) -> T:
        """What rank 0 gave; the others' values are not read."""
        ...

    def writing_group(self) -> Any:
        """A group of all ranks apart from the one that trains; the first call must come from all of them. None for one rank."""
        ...


class OneRank:
    """A policy on one rank."""

    index = 0
    size = 1

    def sum(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values

    def wait(self) -> None:
        """There is nobody to wait for."""

    def from_first(self, value: T) -> T:
        """The value itself."""
        return value

    def writing_group(self) -> None:
        """There is nobody to talk to."""


class ProcessRanks:
    """One process for each rank; torch's process group is their only channel.

    mesh: over all of them, ``shard`` or ``replicate × shard``.
    """

    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh
        self._writing: Any = None
        self.index, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, values: Tensor) -> Tensor:
        """Elementwise sum over all ranks, on the device of ``values``."""
        total = values.clone()
        dist.all_reduce(total)
        return total

    def wait(self) -> None:
        """A barrier."""
        dist.barrier()

    def from_first(self, value: T) -> T:
        """Rank 0's value, pickled."""
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def writing_group(self) -> Any:
        """A gloo group, made once."""
        self._writing = self._writing or dist.new_group(backend="gloo")
        return self._writing
