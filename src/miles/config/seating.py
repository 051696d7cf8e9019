"""Which trainer rank and which engine sits on which node and device, as far as that is known before Ray is asked.

Ranks fill the nodes of the policy; a critic's own ranks, then engines take the devices that are left on them, then further
nodes. Ray packs in the same order but may pick other nodes of a cluster with several.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from miles.config.derived import Derived
from miles.config.options.placement import Colocated, Disaggregated
from miles.config.resolution import Resolution

GPUS_OF_A_NODE = 8
CELLS_OF_A_LINE = 4


@dataclass(frozen=True, slots=True)
class Seat:
    """One process of the run.

    name: ``rank 0``, ``critic 0``, ``engine 1``.
    node: from 0, in the order of placement.
    devices: GPUs of the node; none for a process on a CPU.
    engine: what kind of engine it is; empty for a rank.
    """

    name: str
    node: int
    devices: tuple[int, ...]
    engine: str = ""

    @property
    def device(self) -> str:
        """``GPU 3 on node 1``, ``GPUs 4–7 on node 0, sglang``, ``a CPU process, embedded``."""
        where = f"{_gpus(self.devices)} on node {self.node}" if self.devices else "a CPU process"
        return f"{where}, {self.engine}" if self.engine else where


def seats_of(resolution: Resolution) -> tuple[Seat, ...]:
    """Every trainer rank, then a critic's own, then every engine, then those for evaluation alone."""
    derived, placement = resolution.derived, resolution.config.placement
    if derived.device == "cpu":
        ranks = [Seat(name, 0, ()) for name in (*_names("rank", derived.num_ranks), *_names("critic", derived.num_critic_ranks))]
        return (*ranks, *(Seat(name, 0, (), derived.engine) for name in engine_names(derived)))
    return (*_ranks(placement), *_beyond(placement, derived))


def map_lines(seats: Sequence[Seat]) -> Iterator[str]:
    """A line for every few seats of a node: ``node 0  [GPU 0 rank 0] [GPU 1 rank 1] …``."""
    for node in sorted({seat.node for seat in seats}):
        cells = list(_cells([seat for seat in seats if seat.node == node]))
        for start in range(0, len(cells), CELLS_OF_A_LINE):
            head = f"node {node}" if start == 0 else " " * len(f"node {node}")
            yield f"{head}  {' '.join(cells[start : start + CELLS_OF_A_LINE])}"


def _cells(seats: Sequence[Seat]) -> Iterator[str]:
    """One for every set of devices; those who take turns on it stand together."""
    names: dict[tuple[int, ...], list[str]] = {}
    for seat in seats:
        name = f"{seat.name} {seat.engine}".rstrip()
        if not seat.devices:
            yield f"[CPU {name}]"
        names.setdefault(seat.devices, []).append(name)
    for devices in sorted(devices for devices in names if devices):
        yield f"[{_gpus(devices)} {' + '.join(names[devices])}]"


def _ranks(placement: Disaggregated | Colocated) -> Iterator[Seat]:
    size = placement.actor_num_gpus_per_node
    for rank in range(placement.actor_num_nodes * size):
        yield Seat(f"rank {rank}", rank // size, (rank % size,))


def _beyond(placement: Disaggregated | Colocated, derived: Derived) -> Iterator[Seat]:
    """Who sits beside the policy: the critic's own ranks on the next devices, then engines, unless they share the policy's."""
    place = Places(placement)
    for name in _names("critic", derived.num_critic_ranks):
        yield Seat(name, *place.take(1))
    size = placement.rollout_num_gpus_per_engine
    if not isinstance(placement, Colocated):
        yield from (Seat(name, *place.take(size), derived.engine) for name in engine_names(derived))
        return
    for number in range(derived.num_engines):
        node, first = divmod(number * size, placement.actor_num_gpus_per_node)
        yield Seat(f"engine {number}", node, tuple(range(first, first + size)), derived.engine)


class Places:
    """The devices after the policy's, in order."""

    def __init__(self, placement: Disaggregated | Colocated) -> None:
        self._room = max(GPUS_OF_A_NODE, placement.actor_num_gpus_per_node)
        self._node, self._first = placement.actor_num_nodes - 1, placement.actor_num_gpus_per_node

    def take(self, size: int) -> tuple[int, tuple[int, ...]]:
        """Node and devices of the next process, which spans no two nodes unless it is larger than one."""
        if self._first + size > self._room and self._first > 0:
            self._node, self._first = self._node + 1, 0
        first, self._first = self._first, self._first + size
        return self._node, tuple(range(first, first + size))


def _names(kind: str, count: int) -> list[str]:
    return [f"{kind} {number}" for number in range(count)]


def engine_names(derived: Derived) -> list[str]:
    """``engine 0`` …, then ``eval engine 2`` …: one numbering for all."""
    everyone = range(derived.num_engines + derived.num_eval_engines)
    return [f"engine {number}" if number < derived.num_engines else f"eval engine {number}" for number in everyone]


def _gpus(devices: Sequence[int]) -> str:
    return f"GPU {devices[0]}" if len(devices) == 1 else f"GPUs {devices[0]}–{devices[-1]}"
