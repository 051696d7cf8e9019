"""The policy for the loops: every call goes to all ranks and is one awaitable, with one answer or one error.

loop ──PolicyClient.train_on(Rollout)──► TrainBatch ──Ray──► PolicyWorker × ranks ──► Trainer
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.errors import CheckpointError, MilesError, NotFiniteError, PolicyError
from miles.policy.actor import PolicyWorker
from miles.policy.batch import TrainBatch, refuse_what_is_no_number
from miles.policy.failure import POLICY, write_failure
from miles.policy.weights_client import PolicyWeights
from miles.types import Metrics, Rollout, StepReport

T = TypeVar("T")
OWN_WORDS_SECONDS = 5.0
WATCH_SECONDS = 1.0
WRITING = "writing"  # Ray's name for the thread that finishes checkpoints


@dataclass(frozen=True, slots=True)
class FailureFolder:
    """Where a step that failed is kept, and with what it was taken."""

    folder: Path
    config: AnyConfig
    derived: Derived


def start_policy(config: AnyConfig, derived: Derived, actor_options: Sequence[dict[str, Any]], failures: Path) -> "PolicyClient":
    """Start one actor for each rank (``actor_options`` as for Ray's ``.options``) and return at once.

    A step whose loss or gradient is no number is kept below ``failures``.
    """
    import ray

    absolute = with_absolute_folders(config)
    remote = ray.remote(concurrency_groups={WRITING: 1}) if config.model.async_save else ray.remote
    actor_class = remote(PolicyWorker)
    actors = [actor_class.options(**options).remote(absolute, derived, index) for index, options in enumerate(actor_options)]
    return PolicyClient(actors, FailureFolder(failures, absolute, derived))


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
    """The policy, for the loops: each call is awaited on the caller's event loop; folders are absolute paths."""

    def __init__(self, actors: Sequence[Any], failures: FailureFolder | None = None) -> None:
        """Talk to the ``PolicyWorker``s behind the handles, rank 0 first; ``info`` has them start and waits for it."""
        self._failures = failures
        self.actors = list(actors)
        self._started = [self.actors[0].start.remote()] if len(self.actors) == 1 else []

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
            raise NotFiniteError(f"{error} {await self._keep(batch)}") from error
        return await self.train_on_batch(batch)

    async def train_on_batch(self, batch: TrainBatch) -> StepReport:
        """The same for what is already in columns."""
        try:
            report: StepReport = await self._all(f"training on rollout {batch.rollout_id}", "train_on", batch)
        except NotFiniteError as error:
            raise NotFiniteError(f"{error} {await self._keep(batch)}") from error
        return report

    async def _keep(self, batch: TrainBatch) -> str:
        """Write a failed batch and the policy before it; what became of that, in a sentence."""
        if self._failures is None:
            return ""
        folder = self._failures.folder / f"rollout-{batch.rollout_id:06d}"
        try:
            write_failure(folder, batch, self._failures.config, self._failures.derived)
            await self.save(folder / POLICY)
        except (OSError, CheckpointError) as error:
            return f"The batch could not be kept: {error}"
        return f"The batch and the policy before it are kept; `miles replay {folder}` takes the step again, sample by sample."

    async def mean_loss(self, batch: TrainBatch) -> float:
        """Mean of −log π over the batch's trained tokens, without a step."""
        loss: float = await self._all("measuring held-out examples", "mean_loss", batch)
        return loss

    async def export_weights(self, folder: Path) -> None:
        """Write the weights as an HF safetensors folder, which appears whole."""
        await self._all(f"exporting weights to {folder}", "export_weights", folder)

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
        await self._all(f"saving {folder}", "save", folder)

    async def begin_save(self, folder: Path) -> None:
        """Copy what a checkpoint holds and return; it is written meanwhile. Needs ``--async-save``."""
        await self._all(f"copying what {folder} will hold", "begin_save", folder)

    async def finish_save(self) -> None:
        """Wait until the checkpoint begun last is in its place; steps go on beside it. ``CheckpointError`` as ``save``."""
        calls = [actor.finish_save.options(concurrency_group=WRITING).remote() for actor in self.actors]
        await _answers("writing a checkpoint", calls)

    async def load(self, folder: Path, *, anew: bool = False) -> None:
        """Go on from a checkpoint, or with ``anew`` begin with its weights and moments.

        Raises:
            CheckpointError: it is missing, damaged or does not fit.
        """
        await self._all(f"loading {folder}", "load", folder, anew)

    async def info(self) -> Metrics:
        """As ``PolicyWorker.info``; returns once the model is loaded, raises ``PolicyError`` if it cannot be."""
        if not self._started:
            address: str = (await _answers("starting", [self.actors[0].listen.remote()]))[0]
            self._started = [actor.start.remote(address) for actor in self.actors]
        await _answers("starting", self._started)
        info: Metrics = await self._all("starting", "info")
        return info

    async def watch(self) -> None:
        """For as long as every rank's process lives, also while nobody calls it; a rank at work answers after that.

        Raises:
            PolicyError: one has ended.
        """
        while True:
            await _answers("the run went on", [actor.alive.remote() for actor in self.actors])
            await asyncio.sleep(WATCH_SECONDS)

    async def _all(self, doing: str, method: str, *arguments: Any) -> Any:
        """Call all ranks; rank 0's answer."""
        return (await _answers(doing, [getattr(actor, method).remote(*arguments) for actor in self.actors]))[0]

    async def _each(self, doing: str, step: str, *arguments: Any, first_only: bool = False, **options: Any) -> list[Any]:
        """One step of sending weights, on rank 0 or on all ranks; the answer of each."""
        actors = self.actors[:1] if first_only else self.actors
        return await _answers(doing, [actor.send.remote(step, *arguments, **options) for actor in actors])


async def _answers(doing: str, calls: Sequence[Awaitable[T]]) -> list[T]:
    """The actors' answers in order; their own errors as they are, everything else as a ``PolicyError`` with its cause.

    When one rank fails, the others wait for it in vain or lose their connection to it: they get a moment to say what
    happened to them, and the error with the most to say is raised.

    Raises:
        MilesError: whatever a worker raised.
        PolicyError: a worker failed otherwise, or its process has ended.
    """
    answers = [asyncio.ensure_future(_answer(call)) for call in calls]
    await asyncio.wait(answers, return_when=asyncio.FIRST_EXCEPTION)
    if any(not answer.done() for answer in answers):
        await asyncio.wait(answers, timeout=OWN_WORDS_SECONDS)
    errors = {rank: error for rank, answer in enumerate(answers) if answer.done() and (error := answer.exception()) is not None}
    for answer in answers:
        answer.cancel()
    if errors:
        rank = min(errors, key=lambda rank: (_vagueness(errors[rank]), rank))
        raise _as_miles_error(doing, errors[rank], f"rank {rank} of the policy" if len(answers) > 1 else "the policy")
    return [answer.result() for answer in answers]


async def _answer(call: Awaitable[T]) -> T:
    """A coroutine around whatever Ray returns."""
    return await call


def _vagueness(error: BaseException) -> int:
    """0 for an error of our own, 1 for a process that ended, 2 for anything else, such as a lost connection."""
    from ray.exceptions import RayActorError

    return 0 if isinstance(getattr(error, "cause", None), MilesError) else 1 if isinstance(error, RayActorError) else 2


def _as_miles_error(doing: str, error: BaseException, who: str) -> BaseException:
    """The error that the caller sees, its cause attached."""
    from ray.exceptions import RayActorError, RayError, RayTaskError

    if isinstance(error, RayTaskError):
        cause = error.cause
        text = f"{who} failed while {doing}: {cause!r}. Its log in the run folder has the traceback."
        found: BaseException = cause if isinstance(cause, MilesError) else PolicyError(text)
    elif isinstance(error, RayActorError):
        first_line = str(error).splitlines()[0]
        found = PolicyError(f"{who}'s process ended while {doing}: {first_line} If memory ran out, lower --max-tokens-per-gpu.")
    elif isinstance(error, RayError):
        found = PolicyError(f"Ray failed while {doing} with {who}: {error}. See `ray status`.")
    else:
        return error
    found.__cause__ = error
    return found
