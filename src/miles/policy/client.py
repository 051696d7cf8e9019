"""The policy for the loops: every call goes to all ranks and is one awaitable, with one answer or one error.

loop ──PolicyClient.train_on(Rollout)──► TrainBatch ──Ray──► PolicyWorker × ranks ──► Trainer
                                                     └─────► CriticWorker × ranks ──► Critic      where it has ranks of its own
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.errors import CheckpointError, CriticNotFiniteError, NotFiniteError
from miles.policy.actor import PolicyWorker
from miles.policy.batch import TrainBatch, refuse_what_is_no_number
from miles.policy.critic_actor import CriticWorker
from miles.policy.critic_client import cleared, known_before, part_for, train_beside
from miles.policy.failure import POLICY, write_failure
from miles.policy.known import Known
from miles.policy.rank_calls import RankCalls, Seats, start_ranks
from miles.policy.weights_client import PolicyWeights
from miles.types import Metrics, Rollout, StepReport

BEFORE = "The batch and the policy before it are kept; `miles replay {folder}` takes the step again, sample by sample."
AFTER = (
    "The batch and the policy as it is after its own steps are kept; `miles replay {folder}` shows the policy's loss of every "
    "sample under those weights, not the critic's."
)


@dataclass(frozen=True, slots=True)
class FailureFolder:
    """Where a step that failed is kept, and with what it was taken."""

    folder: Path
    config: AnyConfig
    derived: Derived


def start_policy(config: AnyConfig, derived: Derived, seats: Seats, failures: Path, critic_seats: Seats = ()) -> "PolicyClient":
    """Start one actor for each rank, of the critic too where it has ranks of its own, and return at once.

    Args:
        config: of the run.
        derived: likewise.
        seats: ``.options(**…)`` of each rank's actor.
        failures: a step whose loss or gradient is no number is kept below this folder.
        critic_seats: as ``seats``, of the critic's own ranks.
    """
    absolute = with_absolute_folders(config)
    policy = start_ranks(PolicyWorker, "the policy", absolute, derived, seats)
    critic = start_ranks(CriticWorker, "the critic", absolute, derived, critic_seats) if critic_seats else None
    return PolicyClient(policy, FailureFolder(failures, absolute, derived), critic)


def with_absolute_folders(config: AnyConfig) -> AnyConfig:
    """The configuration for processes that work in other directories."""
    places = {"model": ("hf_checkpoint", "ref_load"), "critic": ("critic_load",)}
    sections = {}
    for section, names in places.items():
        options = getattr(config, section)
        absolute = {name: path.absolute() for name in names if (path := getattr(options, name)) is not None}
        sections[section] = options.model_copy(update=absolute)
    return config.model_copy(update=sections)


class PolicyClient:
    """The policy, for the loops: each call is awaited on the caller's event loop; folders are absolute paths.

    groups: its ranks, and those of a critic that has its own.
    notes: what the ranks have to say once they have started, a sentence each; as ``Trainer.notes``.
    """

    def __init__(self, ranks: RankCalls, failures: FailureFolder | None = None, critic: RankCalls | None = None) -> None:
        """Talk to ``PolicyWorker``s, and to ``CriticWorker``s where there are any; ``info`` has them start and waits for it."""
        self._failures, self._ranks, self._critic = failures, ranks, critic
        self._part: Path | None = None
        self.notes: tuple[str, ...] = ()
        self.groups = [ranks, *([critic] if critic else [])]

    @property
    def actors(self) -> list[Any]:
        """Handles of the policy's ranks."""
        return self._ranks.actors

    @property
    def processes(self) -> Mapping[str, Any]:
        """Every actor by the name of its process."""
        critics = self._critic.actors if self._critic else []
        own = {f"rank-{rank}": actor for rank, actor in enumerate(self.actors)}
        return own | {f"critic-{rank}": actor for rank, actor in enumerate(critics)}

    async def train_on(self, rollout: Rollout, policy_version: int) -> StepReport:
        """Take the optimiser steps of one rollout.

        Raises:
            PolicyError: the rollout cannot be trained on, or a rank's process has ended.
            NotFiniteError: a reward, log-prob, loss or gradient is no number; the batch is kept for ``miles replay``.
        """
        batch = TrainBatch.from_rollout(rollout, policy_version)
        try:
            refuse_what_is_no_number(rollout, batch)
        except NotFiniteError as error:
            raise NotFiniteError(f"{error} {await self._keep(batch, BEFORE)}") from error
        return await self.train_on_batch(batch)

    async def train_on_batch(self, batch: TrainBatch) -> StepReport:
        """The same for what is already in columns."""
        known = await known_before(self._ranks, self._critic, batch) if self._critic else None
        try:
            if self._critic is not None and known is not None:
                return await train_beside(self._ranks, self._critic, batch, known)
            report: StepReport = await self._all(f"training on rollout {batch.rollout_id}", "train_on", batch)
        except NotFiniteError as error:
            kept = AFTER if isinstance(error, CriticNotFiniteError) else BEFORE
            raise type(error)(f"{error} {await self._keep(batch, kept, known)}") from error
        return report

    async def _keep(self, batch: TrainBatch, kept: str, known: Known | None = None) -> str:
        """Write a failed batch and the policy as it is now; what became of that, in words: ``kept`` where it is written."""
        if self._failures is None:
            return ""
        folder = self._failures.folder / f"rollout-{batch.rollout_id:06d}"
        try:
            write_failure(folder, batch, self._failures.config, self._failures.derived, known)
            await self.save(folder / POLICY)
        except (OSError, CheckpointError) as error:
            return f"The batch could not be kept: {error}"
        return kept.format(folder=folder)

    async def mean_loss(self, batch: TrainBatch) -> float:
        """Mean of −log π over the batch's trained tokens, without a step."""
        loss: float = await self._all("measuring held-out examples", "mean_loss", batch)
        return loss

    async def export_weights(self, folder: Path) -> None:
        """Write the weights as an HF safetensors folder, which appears whole."""
        await self._all(f"exporting weights to {folder}", "export_weights", folder)

    async def export_adapters(self, folder: Path) -> None:
        """Write the LoRA adapters alone, in peft's format; the folder appears whole."""
        await self._all(f"exporting adapters to {folder}", "export_weights", folder, True)

    @property
    def weights(self) -> PolicyWeights:
        """The sending end of publishing."""
        return PolicyWeights(self._each)

    async def onload(self) -> None:
        """Move model and optimiser to the policy's devices; nothing to do on a CPU."""
        await self._all("taking its devices", "place", "onload")

    async def offload(self) -> None:
        """Move them to host memory."""
        await self._all("leaving its devices", "place", "offload")

    async def save(self, folder: Path) -> None:
        """Write a checkpoint, aside first and then renamed; ``CheckpointError`` where it cannot be written."""
        doing = f"saving {folder}"
        if self._critic is None:
            await self._all(doing, "save", folder)
            return
        with cleared(part := part_for(folder)):
            await self._critic.all(doing, "save", part)
            await self._all(doing, "save", folder, part)

    async def begin_save(self, folder: Path) -> None:
        """Copy what a checkpoint holds and return; it is written meanwhile. Needs ``--async-save``."""
        doing = f"copying what {folder} will hold"
        if self._critic is None:
            await self._all(doing, "begin_save", folder)
            return
        self._part = part_for(folder)
        await asyncio.gather(self._critic.all(doing, "begin_save", self._part), self._all(doing, "begin_save", folder))

    async def finish_save(self) -> None:
        """Wait until the checkpoint begun last is in its place; steps go on beside it. ``CheckpointError`` as ``save``."""
        part, self._part = self._part, None
        if self._critic is None or part is None:
            await self._ranks.finish_save()
            return
        with cleared(part):
            await self._critic.finish_save()
            await self._ranks.finish_save(part)

    async def load(self, folder: Path, *, anew: bool = False) -> None:
        """Go on from a checkpoint, or with ``anew`` begin with its weights and moments.

        Raises:
            CheckpointError: it is missing, damaged or does not fit.
        """
        for group in self.groups:  # the policy looks for damage first
            await group.all(f"loading {folder}", "load", folder, anew)

    async def info(self) -> Metrics:
        """As ``PolicyWorker.info``; returns once every model is loaded, raises ``PolicyError`` if one cannot be."""
        told = await asyncio.gather(*(group.start() for group in self.groups))
        self.notes = tuple(dict.fromkeys(note for notes in told for note in notes))
        info: Metrics = await self._all("starting", "info")
        return info

    async def _all(self, doing: str, method: str, *arguments: Any) -> Any:
        """Call all ranks; rank 0's answer."""
        return await self._ranks.all(doing, method, *arguments)

    async def _each(self, doing: str, step: str, *arguments: Any, first_only: bool = False, **options: Any) -> list[Any]:
        """One step of sending weights, on rank 0 or on all ranks; the answer of each."""
        actors = self.actors[:1] if first_only else self.actors
        return await self._ranks.answers(doing, [actor.send.remote(step, *arguments, **options) for actor in actors])
