"""What is kept of a step whose loss or gradient is no number, so that it can be taken again and looked at.

<run>/failed/rollout-000012/batch.npz    the columns of the rollout
<run>/failed/rollout-000012/known.npz    what a critic on ranks of its own knew of it
<run>/failed/rollout-000012/setup.json   command, configuration and derived values
<run>/failed/rollout-000012/policy/      weights and optimiser before the step, a checkpoint; where the critic failed, after the
                                         policy's own steps; a critic on ranks of its own is kept after its own, too
"""

import dataclasses
import json
from pathlib import Path

import numpy as np

from miles.config.commands import WITH_ROLLOUTS, AnyConfig
from miles.config.derived import Derived
from miles.config.registry import all_options
from miles.errors import CheckpointError
from miles.policy.batch import TrainBatch
from miles.policy.known import Known

BATCH, KNOWN, SETUP, POLICY = "batch.npz", "known.npz", "setup.json", "policy"


def write_failure(folder: Path, batch: TrainBatch, config: AnyConfig, derived: Derived, known: Known | None = None) -> None:
    """Write batch and setup, and what was known before the step; the policy is written by its ranks.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / BATCH, **{name: getattr(batch, name) for name in TrainBatch.__slots__})
    if known is not None:
        columns = {name: getattr(known, name) for name in Known.__slots__}
        np.savez(folder / KNOWN, **{name: column for name, column in columns.items() if column is not None})
    command = next(name for name, root in WITH_ROLLOUTS.items() if isinstance(config, root))
    options = config.model_dump(mode="json", exclude_unset=True, exclude=secrets_by_section())
    setup = {"command": command, "config": options, "derived": dataclasses.asdict(derived)}
    (folder / SETUP).write_text(json.dumps(setup))


def secrets_by_section() -> dict[str, set[str]]:
    """Options that are nobody's to read; a step is taken again without them."""
    found: dict[str, set[str]] = {}
    for option in all_options():
        if option.meta.secret:
            found.setdefault(option.section, set()).add(option.name)
    return found


def read_failure(folder: Path) -> tuple[TrainBatch, AnyConfig, Derived]:
    """What ``write_failure`` wrote.

    Raises:
        CheckpointError: it is not there, or damaged.
    """
    try:
        with np.load(folder / BATCH, allow_pickle=False) as stored:
            columns = {name: stored[name] for name in TrainBatch.__slots__}
        setup = json.loads((folder / SETUP).read_text())
        config = WITH_ROLLOUTS[setup["command"]].model_validate(setup["config"])
        derived = Derived(**setup["derived"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{folder} holds no step that can be taken again: {error}. Give a folder such as RUN/failed/rollout-000012."
        ) from error
    rollout_id, version = int(columns.pop("rollout_id")), int(columns.pop("policy_version"))
    return TrainBatch(rollout_id=rollout_id, policy_version=version, **columns), config, derived


def read_known(folder: Path) -> Known | None:
    """What was known before the step, where it was written.

    Raises:
        CheckpointError: it is damaged.
    """
    if not (folder / KNOWN).is_file():
        return None
    try:
        with np.load(folder / KNOWN, allow_pickle=False) as stored:
            return Known(**stored)
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{folder / KNOWN} cannot be read: {error}. Put it back, or take the step again.") from error
