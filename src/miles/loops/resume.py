"""Starting again in a run folder: what it holds decides whether the run resumes, and nothing is lost or done twice."""

import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from miles.config.changes import Change, compare_with_recorded
from miles.config.records import RECORD_FILE, record_text
from miles.config.resolution import Resolution
from miles.config.toml_out import config_toml
from miles.errors import CheckpointError
from miles.loops.restore import restore_ledger
from miles.rollout.contracts import Prompts
from miles.rollout.ledger import Ledger
from miles.tracking.metrics_file import BEFORE_ALL, set_aside_rows_after
from miles.tracking.run_folder import RunFolder, RunState, read_state

CONFIG_FILE = "config.toml"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins.

    checkpoint: None for a run that begins anew.
    changes: options that are not what the run was started with, all of a class that may change.
    ledger: with the finished groups of the checkpoint, once ``with_ledger`` has read them.
    lost: what is missing and was accepted as missing, a sentence each.
    """

    state: RunState
    checkpoint: Path | None = None
    changes: tuple[Change, ...] = ()
    ledger: Ledger = field(default_factory=Ledger)
    lost: tuple[str, ...] = ()


def find_start(folder: RunFolder, resolution: Resolution[Any]) -> Start:
    """What the folder says; refuses what cannot be resumed, changes nothing.

    Raises:
        ConfigError: an option changed that may not, or not without being asked.
        CheckpointError: the checkpoint is damaged, and ``--accept-missing-state`` is not set.
    """
    try:
        found = newest_state(folder)
    except CheckpointError as error:
        if not resolution.config.run.accept_missing_state:
            raise
        found = begins_anew(error)
    if not folder.has_rows and found.checkpoint is None:
        return found
    return replace(found, changes=compare_with_recorded(recorded_text(folder), resolution, folder.path))


def newest_state(folder: RunFolder) -> Start:
    """The newest checkpoint; weights that no version names yet get the next one.

    Raises:
        CheckpointError: it is damaged or gone.
    """
    checkpoint = folder.latest()
    if checkpoint is None:
        return Start(RunState(0, 0))
    state = read_state(checkpoint)
    version = state.weight_version if state.weights_published else state.weight_version + 1
    return Start(replace(state, weight_version=version), checkpoint)


def with_ledger(start: Start, resolution: Resolution, prompts: Prompts) -> Start:
    """The start with the ledger and the finished groups of its checkpoint.

    Raises:
        CheckpointError: they are missing or damaged, and ``--accept-missing-state`` is not set.
    """
    if start.checkpoint is None:
        return start
    accepts = resolution.config.run.accept_missing_state
    try:
        prompts.restore(start.state.source)
        ledger, lost = restore_ledger(start.checkpoint, start.state, prompts, accepts_missing=accepts)
    except CheckpointError as error:
        if not accepts:
            raise
        return replace(begins_anew(error), changes=start.changes)
    return replace(start, ledger=ledger, lost=(*start.lost, *lost))


def begins_anew(error: CheckpointError) -> Start:
    """A run whose state is lost."""
    return Start(RunState(0, 0), lost=(f"the run begins anew, its trained rollouts are lost: {error}",))


def recorded_text(folder: RunFolder) -> str:
    """What the run was started with.

    Raises:
        CheckpointError: the folder's config.toml cannot be read.
    """
    path = folder.path / CONFIG_FILE
    try:
        text = path.read_text()
        tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}, which says what the run was started with, cannot be read: {error}. Put it back, or give a new --run-dir."
        ) from error
    return text


def look_ahead(resolution: Resolution[Any]) -> tuple[str, ...]:
    """What a start in the run folder would do, in lines; empty where it would begin anew. Writes nothing.

    Raises:
        ConfigError: the run could not go on with these options.
        CheckpointError: what it would go on from is damaged.
    """
    path, save = resolution.config.run.run_dir, resolution.config.model.save
    if path is None or not path.is_dir():
        return ()
    folder = RunFolder(path.absolute(), (save or path / "checkpoints").absolute())
    start = find_start(folder, resolution)
    if start.checkpoint is None:
        return ()
    changes = [str(change) for change in start.changes] or ["nothing is changed"]
    return (f"resumes after rollout {start.state.rollouts_done - 1} from {start.checkpoint.name}", *changes)


def record_start(folder: RunFolder, resolution: Resolution[Any], start: Start) -> int:
    """Write config.toml and config.json, and move rows after the checkpoint aside; returns how many rows moved."""
    (folder.path / CONFIG_FILE).write_text(config_toml(resolution))
    (folder.path / RECORD_FILE).write_text(record_text(resolution))
    last = BEFORE_ALL if start.checkpoint is None else start.state.rollouts_done - 1
    return set_aside_rows_after(folder.path, last) if folder.has_rows else 0


def resume_notes(start: Start, num_moved: int) -> list[str]:
    """What the user should know about where the run goes on; nothing for a first start."""
    aside = f"; {num_moved} later rows of metrics.jsonl moved aside" if num_moved else ""
    if start.checkpoint is None:
        return [*start.lost, *([f"no checkpoint was written, the run begins anew{aside}"] if aside and not start.lost else [])]
    kept = {"finished": len(start.ledger.finished()), "unfinished": start.ledger.num_unfinished}
    parts = [f"{number} {name}" for name, number in kept.items() if number]
    groups = f", with {' and '.join(parts)} groups" if parts else ""
    return [*start.lost, f"resuming after rollout {start.state.rollouts_done - 1}{groups}{aside}"]
