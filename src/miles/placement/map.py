"""Who sits where: one bundle of resources for each rank of policy and critic and each engine, in a fixed order."""

from dataclasses import dataclass
from typing import Literal

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.config.options.placement import Colocated

Role = Literal["rank", "critic", "engine"]


@dataclass(frozen=True, slots=True)
class Seat:
    """One process of the run and what it asks of Ray.

    resources: on a GPU node one GPU (an engine as many as it spans) and one CPU; on a CPU one logical CPU. An engine that
        shares its GPUs with the policy asks for none: the ranks hold them.
    """

    role: Role
    number: int
    resources: dict[str, float]


def seats(config: AnyConfig, derived: Derived) -> list[Seat]:
    """Ranks first, then a critic's own, then engines, those for evaluation last: bundle i of the group belongs to seat i."""
    cuda = derived.device == "cuda"
    rank = {"CPU": 1.0, "GPU": 1.0} if cuda else {"CPU": 1.0}
    gpus = float(config.placement.rollout_num_gpus_per_engine)
    has_own = cuda and derived.engine == "sglang" and not isinstance(config.placement, Colocated)
    engine = {"CPU": 1.0, "GPU": gpus} if has_own else {"CPU": 1.0}
    ranks = [Seat("rank", number, rank) for number in range(derived.num_ranks)]
    ranks += [Seat("critic", number, rank) for number in range(derived.num_critic_ranks)]
    return ranks + [Seat("engine", number, engine) for number in range(derived.num_engines + derived.num_eval_engines)]


def total_resources(wanted: list[Seat]) -> dict[str, float]:
    """Sum over the seats, by resource."""
    names = {name for seat in wanted for name in seat.resources}
    return {name: sum(seat.resources.get(name, 0.0) for seat in wanted) for name in sorted(names)}
