"""One rank of a model that several processes train: how it gets ready and meets the others."""

import os
from typing import TYPE_CHECKING, Any

from miles.config.commands import AnyConfig
from miles.config.derived import Derived

if TYPE_CHECKING:
    from miles.policy.ranks import Ranks


class RankWorker:
    """What ranks of policy and critic have in common; runs in a Ray actor, which takes one call at a time.

    The model is loaded by ``start`` and not when the actor is made: Ray keeps only the text of what a constructor raises.
    With several ranks each call goes to all of them, because they meet inside it.
    """

    def __init__(
        self, config: AnyConfig, derived: Derived, index: int, num_ranks: int, num_ranks_per_replica: int | None = None
    ) -> None:
        """Rank ``index`` of so many, of which some hold one copy of the model together; by default all do."""
        self._config, self._derived, self._index = config, derived, index
        self._num_ranks, self._num_ranks_per_replica = num_ranks, num_ranks_per_replica or num_ranks
        self._store: Any = None

    def listen(self) -> str:
        """On rank 0: wait for the others at the address returned, ``host:port``."""
        from ray.util import get_node_ip_address

        from miles.policy.process_group import listen

        host = get_node_ip_address()
        self._store = listen(host, self._num_ranks)
        return f"{host}:{self._store.port}"

    def alive(self) -> None:
        """Answers once the calls before it are done."""

    def _ready(self, address: str) -> "Ranks | None":
        """Prepare the process and meet the other ranks at rank 0's address; None where there are none and none are needed."""
        run, num_ranks = self._config.run, self._num_ranks
        prepare_process(self._derived.device, seed=run.seed, deterministic=run.deterministic)
        from miles.policy.process_group import connect, group_of_one, join

        if num_ranks == 1:
            return group_of_one(self._config, self._derived.device)
        store = self._store or connect(address, num_ranks)
        return join(store, self._index, num_ranks, self._num_ranks_per_replica, self._derived.device)


def prepare_process(device: str, *, seed: int, deterministic: bool) -> None:
    """Settings of the whole process: its seed, one thread on a CPU (engines need the other cores), the same bits if asked for."""
    if deterministic:  # read by cuBLAS when it starts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    if device == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(deterministic)
