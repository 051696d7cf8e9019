"""A checkpoint that is written while the policy goes on: a step waits for a copy, not for the disk.

begin    every rank copies its slices into host memory                               the policy waits for this
finish   slices ─► disk ─► rank 0: HF folder out of them, fingerprints, rename       nobody waits
"""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from miles.policy.adapters import has_adapters
from miles.policy.checkpoint import HF, TENSORS, complete, copy_companions, not_written, trainer_state, write_hf
from miles.policy.export import BUCKET_BYTES, cut, untied_weights
from miles.policy.folders import written_aside
from miles.policy.trainer import Trainer
from miles.policy.trainer_state import MODEL, begin_writing, read_stored, stored_names

PREFIX = MODEL + "causal_lm."


class BackgroundSave:
    """One checkpoint being written; ``finish`` may be called from another thread than the one that trains."""

    def __init__(self, trainer: Trainer, folder: Path, source: Path) -> None:
        """Copy everything that a checkpoint holds; every rank must call it.

        Args:
            trainer: whose state of this moment is saved.
            folder: the checkpoint, in a file system that all ranks see.
            source: the HF folder the run started from; what is no weight is copied from it.

        Raises:
            CheckpointError: the folder cannot be made.
        """
        self._folder, self._is_first, self._stack = folder, trainer.ranks.index == 0, ExitStack()
        self._causal_lm = trainer.model.causal_lm
        aside: Path | None = None
        try:
            if self._is_first:
                aside = self._stack.enter_context(written_aside(folder, durable=True))
                copy_companions(source, aside / HF)
                (aside / TENSORS).mkdir(parents=True)
                self._state, self._weights = trainer_state(trainer), _forms(self._causal_lm)
            self._aside = Path(trainer.ranks.from_first(aside) or folder)
            self._writing = begin_writing(trainer, self._aside / TENSORS)
        except (OSError, RuntimeError) as error:
            self._stack.close()
            raise not_written(folder, error) from error

    def finish(self, critic_part: Path | None = None) -> None:
        """Wait until the checkpoint is whole and in its place; ``critic_part`` as for ``save_checkpoint``.

        Raises:
            CheckpointError: it could not be written.
        """
        try:
            with self._stack:
                self._writing.result()
                if self._is_first:
                    self._write_rest(critic_part)
        except (OSError, RuntimeError, SafetensorError, CheckpointException) as error:
            raise not_written(self._folder, error) from error

    def _write_rest(self, critic_part: Path | None) -> None:
        """What only the first rank writes; the weights come out of what all have written."""
        tensors, saved = self._aside / TENSORS, self._aside / HF
        stored = stored_names(tensors)
        read = partial(_weight, tensors, stored)
        if has_adapters(self._causal_lm):
            weights = {name.removeprefix(PREFIX): form for name, form in stored.items() if name.startswith(PREFIX)}
            write_hf(self._causal_lm, saved, adapters={name: read(name, form) for name, form in weights.items()})
        else:
            buckets = ({name: read(name, self._weights[name]) for name in names} for names in cut(self._weights, BUCKET_BYTES))
            write_hf(self._causal_lm, saved, buckets)
        complete(self._aside, self._state, critic_part)


def _forms(causal_lm: Any) -> dict[str, Tensor]:
    """Shape and type of every weight by name, without its numbers; a buffer, which nothing trains, as it is."""
    trained = {name for name, _ in causal_lm.named_parameters()}
    weights = untied_weights(causal_lm)
    return {name: torch.empty_like(t, device="meta") if name in trained else t.detach().clone() for name, t in weights.items()}


def _weight(tensors: Path, names: dict[str, Tensor], name: str, form: Tensor) -> Tensor:
    """A whole weight out of the slices on disk."""
    key = PREFIX + name
    return read_stored(tensors, key, names[key]) if key in names else form
