"""A trainer rank as its own process: the Ray actor around ``Trainer``. ``client`` is what loops call."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.errors import PolicyError
from miles.long_lived import keep_what_is_loaded
from miles.policy.batch import TrainBatch
from miles.policy.known import Known
from miles.policy.rank_worker import RankWorker
from miles.types import Metrics, StepReport

if TYPE_CHECKING:
    from miles.policy.background_save import BackgroundSave
    from miles.policy.sender import WeightSender
    from miles.policy.trainer import Trainer


class PolicyWorker(RankWorker):
    """What runs in the actor: one trainer rank."""

    def __init__(self, config: AnyConfig, derived: Derived, index: int = 0) -> None:
        super().__init__(config, derived, index, derived.num_ranks, config.placement.actor_num_gpus_per_replica)
        self._started: Trainer | None = None
        self._sender: WeightSender | None = None
        self._saving: BackgroundSave | None = None

    def start(self, address: str = "") -> tuple[str, ...]:
        """Prepare the process, meet the other ranks at rank 0's address, and load the model; as ``Trainer.notes``.

        Raises:
            PolicyError: as ``Trainer``.
        """
        ranks = self._ready(address)
        from miles.policy.trainer import Trainer

        self._started = Trainer(self._config, self._derived, ranks)
        keep_what_is_loaded()
        return self._started.notes

    @property
    def _trainer(self) -> "Trainer":
        if self._started is None:
            raise PolicyError("the policy has no model; it did not start. The first error of the run says why.")
        return self._started

    def known(self, batch: TrainBatch) -> Known | None:
        """As ``Trainer.known``; told by rank 0 alone."""
        known = self._trainer.known(batch)
        return known if self._index == 0 else None

    def train_on(self, batch: TrainBatch, known: Known | None = None) -> StepReport:
        """As ``Trainer.train_on_batch``."""
        return self._trainer.train_on_batch(batch, known)

    def mean_loss(self, batch: TrainBatch) -> float:
        """As ``Trainer.mean_loss``."""
        return self._trainer.mean_loss(batch)

    def export_weights(self, folder: Path, adapters_alone: bool = False) -> None:
        """Write the weights as an HF folder, or the adapters as one of peft's; ``PolicyError`` where it cannot be written."""
        from miles.policy.export import export_adapters, export_weights

        export = export_adapters if adapters_alone else export_weights
        try:
            export(self._trainer.model.causal_lm, folder, self._trainer.ranks)
        except OSError as error:
            raise PolicyError(f"the weights could not be written to {folder}: {error}. Free space there.") from error

    def send(self, step: str, *arguments: Any, **options: Any) -> Any:
        """One step of sending weights to engines: the method ``step`` of ``WeightSender``."""
        from miles.policy.sender import WeightSender

        if self._sender is None:
            self._sender = WeightSender(self._trainer.model.causal_lm, self._trainer.ranks, self._config.model.dtype)
        return getattr(self._sender, step)(*arguments, **options)

    def place(self, where: str) -> None:
        """Move model and optimiser to the device of the policy (``onload``) or into host memory (``offload``)."""
        from miles.policy.offload import move_trainer

        if self._derived.device != "cpu":
            move_trainer(self._trainer, self._derived.device if where == "onload" else "cpu")

    def save(self, folder: Path, critic_part: Path | None = None) -> None:
        """As ``save_checkpoint``."""
        from miles.policy.checkpoint import save_checkpoint

        save_checkpoint(self._trainer, folder, self._config.model.hf_checkpoint, critic_part)

    def begin_save(self, folder: Path) -> None:
        """As ``BackgroundSave``; the one before must be finished."""
        from miles.policy.background_save import BackgroundSave

        self._saving = BackgroundSave(self._trainer, folder, self._config.model.hf_checkpoint)

    def finish_save(self, critic_part: Path | None = None) -> None:
        """Wait for what ``begin_save`` began; runs beside the other calls, in a thread of its own."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.finish(critic_part)

    def load(self, folder: Path, anew: bool = False) -> None:
        """As ``load_checkpoint``."""
        from miles.policy.checkpoint import load_checkpoint

        load_checkpoint(self._trainer, folder, anew=anew)

    def info(self) -> Metrics:
        """Parameters trained, optimiser steps taken, process id, and whether rows share prompts (1 or 0)."""
        model = self._trainer.model
        return {
            "num_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "num_optimizer_steps": self._trainer.num_optimizer_steps,
            "pid": os.getpid(),
            "shares_prompts": int(model.shares_prompts),
        }
