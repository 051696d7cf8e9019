"""What a critic on ranks of its own writes down: its part of a checkpoint, in a folder that the policy takes up.

critic   slices ─► .<checkpoint>.critic.<pid>.part ─┐
policy   slices, HF folder ─────────────────────────┴─► fingerprints of everything, one rename
"""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException

from miles.policy.checkpoint import CRITIC, CRITIC_STATE, CRITIC_TENSORS, critic_state, not_written
from miles.policy.critic import Critic
from miles.policy.trainer_state import begin_writing, write_tensors

SLICES = Path(CRITIC_TENSORS).relative_to(CRITIC)
STATE = Path(CRITIC_STATE).relative_to(CRITIC)


def save_critic(critic: Critic, part: Path) -> None:
    """Write the part; every rank must call.

    Raises:
        CheckpointError: it could not be written.
    """
    try:
        _make(critic, part)
        write_tensors(critic, part / SLICES)
        _write_state(critic, critic_state(critic), part)
        critic.ranks.wait()
    except (OSError, RuntimeError) as error:
        raise not_written(part, error) from error


class BackgroundCriticSave:
    """The part being written; ``finish`` may be called from another thread than the one that trains."""

    def __init__(self, critic: Critic, part: Path) -> None:
        """Copy everything that it holds; every rank must call it.

        Raises:
            CheckpointError: the folder cannot be made.
        """
        self._critic, self._part = critic, part
        try:
            _make(critic, part)
            self._state = critic_state(critic)
            self._writing: Future[Any] = begin_writing(critic, part / SLICES)
        except (OSError, RuntimeError) as error:
            raise not_written(part, error) from error

    def finish(self) -> None:
        """Wait until it is written.

        Raises:
            CheckpointError: it could not be.
        """
        try:
            self._writing.result()
            _write_state(self._critic, self._state, self._part)
        except (OSError, RuntimeError, CheckpointException) as error:
            raise not_written(self._part, error) from error


def _make(critic: Critic, part: Path) -> None:
    """An empty folder, there before any rank writes."""
    if critic.ranks.index == 0:
        (part / SLICES).mkdir(parents=True)
    critic.ranks.wait()


def _write_state(critic: Critic, state: dict[str, Any], part: Path) -> None:
    if critic.ranks.index == 0:
        torch.save(state, part / STATE)
