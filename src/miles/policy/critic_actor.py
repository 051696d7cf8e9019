"""A rank of a critic that has ranks of its own: the Ray actor around ``Critic``. ``critic_client`` is what calls it."""

from pathlib import Path
from typing import TYPE_CHECKING

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.errors import PolicyError
from miles.policy.batch import TrainBatch
from miles.policy.known import Column, column_of
from miles.policy.rank_worker import RankWorker
from miles.types import Metrics

if TYPE_CHECKING:
    from miles.policy.critic import Critic
    from miles.policy.critic_save import BackgroundCriticSave


class CriticWorker(RankWorker):
    """What runs in the actor: one rank of the critic."""

    def __init__(self, config: AnyConfig, derived: Derived, index: int = 0) -> None:
        super().__init__(config, derived, index, derived.num_critic_ranks)
        self._started: Critic | None = None
        self._saving: BackgroundCriticSave | None = None

    def start(self, address: str = "") -> tuple[str, ...]:
        """Prepare the process, meet the other ranks at rank 0's address, and load the value model; as ``Critic.notes``.

        Raises:
            PolicyError: as ``load_critic``.
        """
        ranks = self._ready(address)
        from miles.policy.critic import load_critic
        from miles.policy.ranks import OneRank

        self._started = load_critic(self._config, self._derived, ranks or OneRank())
        return self._started.notes

    @property
    def _critic(self) -> "Critic":
        if self._started is None:
            raise PolicyError("the critic has no model; it did not start. The first error of the run says why.")
        return self._started

    def values(self, batch: TrainBatch) -> Column | None:
        """As ``Critic.values``; told by rank 0 alone."""
        values = column_of(self._critic.values(batch))
        return values if self._index == 0 else None

    def train_on(self, batch: TrainBatch, values: Column, kl: Column | None) -> Metrics:
        """As ``Critic.train_on``, towards what rewards, values before the first step and KL make of the rollout."""
        from miles.policy.critic import judged
        from miles.policy.estimate import AdvantageSpec

        _, targets = judged(batch, AdvantageSpec.from_config(self._config), values, kl)
        return self._critic.train_on(batch, targets)

    def save(self, part: Path) -> None:
        """As ``save_critic``."""
        from miles.policy.critic_save import save_critic

        save_critic(self._critic, part)

    def begin_save(self, part: Path) -> None:
        """As ``BackgroundCriticSave``; the one before must be finished."""
        from miles.policy.critic_save import BackgroundCriticSave

        self._saving = BackgroundCriticSave(self._critic, part)

    def finish_save(self) -> None:
        """Wait for what ``begin_save`` began; runs beside the other calls, in a thread of its own."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.finish()

    def load(self, folder: Path, anew: bool = False) -> None:
        """As ``load_critic_state``."""
        from miles.policy.checkpoint import load_critic_state

        load_critic_state(self._critic, folder, anew=anew)
