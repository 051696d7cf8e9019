"""The ledger and the finished groups of a checkpoint, read before any process is started."""

from pathlib import Path

from miles.errors import CheckpointError
from miles.rollout.contracts import Prompts
from miles.rollout.group_file import read_groups
from miles.rollout.ledger import Ledger
from miles.tracking.run_folder import GROUPS_FILE, RunState


def restore_ledger(
    checkpoint: Path, state: RunState, prompts: Prompts, *, accepts_missing: bool
) -> tuple[Ledger, tuple[str, ...]]:
    """The ledger with its finished groups, and what is lost, a sentence each.

    accepts_missing: finished groups that cannot be read are sampled again instead of refused; no prompt is lost by that.

    Raises:
        CheckpointError: the ledger, or without ``accepts_missing`` the file of finished groups, is missing or damaged.
    """
    try:
        groups = read_groups(checkpoint / GROUPS_FILE, state.groups_digest, prompts)
        return Ledger.restore(state.ledger, groups), ()
    except CheckpointError as error:
        if not accepts_missing:
            raise
        ledger = Ledger.restore(state.ledger, None)
        num_lost = len(state.ledger["finished"]) + len(state.ledger.get("unfinished", ()))
        return ledger, (f"the samples of {num_lost} groups are lost, these prompts are sampled again: {error}",)
