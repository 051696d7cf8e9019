"""The policy as its own process: a Ray actor around the trainer, and the client that loops call.

loop ──PolicyClient.train_on(Rollout)──► TrainBatch ──Ray──► PolicyWorker ──► Trainer
"""

import os
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.errors import MilesError, PolicyError
from miles.policy.batch import TrainBatch
from miles.types import Metrics, Rollout, StepReport

if TYPE_CHECKING:
    from miles.policy.trainer import Trainer

T = TypeVar("T")


class PolicyWorker:
    """What runs in the actor: one trainer rank, which takes one call at a time.

    The model is loaded by ``start`` and not when the actor is made: Ray keeps only the text of what a constructor raises.
    """

    def __init__(self, config: AnyConfig, derived: Derived) -> None:
        self._config, self._derived = config, derived
        self._started: Trainer | None = None

    def start(self) -> None:
        """Prepare the process and load the model.

        Raises:
            PolicyError: as ``Trainer``.
        """
        run = self._config.run
        prepare_process(self._derived.device, seed=run.seed, deterministic=run.deterministic)
        from miles.policy.trainer import Trainer

        self._started = Trainer(self._config, self._derived)

    @property
    def _trainer(self) -> "Trainer":
        if self._started is None:
            raise PolicyError("the policy has no model; it did not start. The first error of the run says why.")
        return self._started

    def train_on(self, batch: TrainBatch) -> StepReport:
        """As ``Trainer.train_on_batch``."""
        return self._trainer.train_on_batch(batch)

    def export_weights(self, folder: Path) -> None:
        """Write the weights as an HF folder; ``PolicyError`` where it cannot be written."""
        from miles.policy.export import export_weights

        try:
            export_weights(self._trainer.model.causal_lm, folder)
        except OSError as error:
            raise PolicyError(f"the weights could not be written to {folder}: {error}. Free space there.") from error

    def save(self, folder: Path) -> None:
        """As ``save_checkpoint``."""
        from miles.policy.checkpoint import save_checkpoint

        save_checkpoint(self._trainer, folder, self._config.model.hf_checkpoint)

    def load(self, folder: Path) -> None:
        """As ``load_checkpoint``."""
        from miles.policy.checkpoint import load_checkpoint

        load_checkpoint(self._trainer, folder)

    def info(self) -> Metrics:
        """Parameters trained, optimiser steps taken, process id, and whether rows share prompts (1 or 0)."""
        model = self._trainer.model
        return {
            "num_parameters": sum(p.numel() for p in model.parameters()),
            "num_optimizer_steps": self._trainer.num_optimizer_steps,
            "pid": os.getpid(),
            "shares_prompts": int(model.shares_prompts),
        }


def prepare_process(device: str, *, seed: int, deterministic: bool) -> None:
    """Settings of the whole process: its seed, one thread on a CPU (engines need the other cores), the same bits if asked for."""
    if deterministic:  # read by cuBLAS when it starts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    if device == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(deterministic)


def start_policy(config: AnyConfig, derived: Derived, **actor_options: Any) -> "PolicyClient":
    """Start the actor (``actor_options`` as for Ray's ``.options``) and return at once."""
    import ray

    model = config.model.model_copy(update={"hf_checkpoint": config.model.hf_checkpoint.absolute()})
    actor_class = ray.remote(PolicyWorker)
    return PolicyClient(actor_class.options(**actor_options).remote(config.model_copy(update={"model": model}), derived))


class PolicyClient:
    """The policy, for the loops: each call is awaited on the caller's event loop; folders are absolute paths."""

    def __init__(self, actor: Any) -> None:
        """Have the ``PolicyWorker`` behind the handle start; ``info`` waits for it."""
        self.actor = actor
        self._started = actor.start.remote()

    async def train_on(self, rollout: Rollout, policy_version: int) -> StepReport:
        """Take the optimiser steps of one rollout.

        Raises:
            PolicyError: the rollout cannot be trained on, a loss or gradient is not finite, or the policy's process has ended.
        """
        batch = TrainBatch.from_rollout(rollout, policy_version)
        return await _answer(f"training on rollout {rollout.rollout_id}", self.actor.train_on.remote(batch))

    async def export_weights(self, folder: Path) -> None:
        """Write the weights as an HF safetensors folder, which appears whole."""
        await _answer(f"exporting weights to {folder}", self.actor.export_weights.remote(folder))

    async def save(self, folder: Path) -> None:
        """Write a checkpoint, aside first and then renamed; ``CheckpointError`` where it cannot be written."""
        await _answer(f"saving {folder}", self.actor.save.remote(folder))

    async def load(self, folder: Path) -> None:
        """Go on from a checkpoint; ``CheckpointError`` where it is missing, damaged or does not fit."""
        await _answer(f"loading {folder}", self.actor.load.remote(folder))

    async def info(self) -> Metrics:
        """As ``PolicyWorker.info``; returns once the model is loaded, raises ``PolicyError`` if it cannot be."""
        await _answer("starting", self._started)
        info: Metrics = await _answer("starting", self.actor.info.remote())
        return info


async def _answer(doing: str, call: Awaitable[T]) -> T:
    """The actor's answer; its own errors as they are, everything else as a ``PolicyError`` with its cause.

    Raises:
        MilesError: whatever the worker raised.
        PolicyError: the worker failed otherwise, or its process has ended.
    """
    from ray.exceptions import RayActorError, RayError, RayTaskError

    try:
        return await call
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, MilesError):
            raise cause from error
        raise PolicyError(f"the policy failed while {doing}: {cause!r}. Its log in the run folder has the traceback.") from error
    except RayActorError as error:
        first_line = str(error).splitlines()[0]
        raise PolicyError(
            f"the policy's process ended while {doing}: {first_line} If memory ran out, lower --max-tokens-per-gpu."
        ) from error
    except RayError as error:
        raise PolicyError(f"Ray failed while {doing} with the policy: {error}. See `ray status`.") from error
