"""Starting again in a run folder: what it holds decides whether the run resumes, and nothing is lost or done twice."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from miles.config.changes import Change, compare_with_recorded
from miles.config.records import RECORD_FILE, record_text
from miles.config.resolution import Resolution
from miles.config.toml_out import config_toml
from miles.errors import CheckpointError, ConfigError, Problem
from miles.tracking.metrics_file import set_aside_rows_after
from miles.tracking.run_folder import RunFolder, RunState, read_state

CONFIG_FILE = "config.toml"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins.

    checkpoint: None for a run that begins anew.
    changes: options that are not what the run was started with, all of a class that may change.
    """

    state: RunState
    checkpoint: Path | None = None
    changes: tuple[Change, ...] = ()


def find_start(folder: RunFolder, resolution: Resolution) -> Start:
    """What the folder says; refuses what cannot be resumed, changes nothing.

    Raises:
        ConfigError: an asynchronous run is to be resumed, or an option changed that may not, or not without being asked.
        CheckpointError: the checkpoint is damaged.
    """
    checkpoint = folder.latest()
    if not folder.has_rows and checkpoint is None:
        return Start(RunState(0, 0))
    if resolution.command != "train":
        why = f"resuming `miles {resolution.command}` is not available yet: groups in flight would be lost"
        raise ConfigError([Problem("run_dir", str(folder.path), "--run-dir", why, "Give a new --run-dir, or leave it out")])
    changes = compare_with_recorded(recorded_text(folder), resolution, folder.path)
    state = RunState(0, 0) if checkpoint is None else read_state(checkpoint)
    return Start(state, checkpoint, changes)


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


def look_ahead(resolution: Resolution) -> tuple[str, ...]:
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


def record_start(folder: RunFolder, resolution: Resolution, start: Start) -> int:
    """Write config.toml and config.json, and move rows after the checkpoint aside; returns how many rows moved."""
    (folder.path / CONFIG_FILE).write_text(config_toml(resolution))
    (folder.path / RECORD_FILE).write_text(record_text(resolution))
    return set_aside_rows_after(folder.path, start.state.rollouts_done - 1) if folder.has_rows else 0
