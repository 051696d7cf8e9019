"""Starting again in a run folder: what it holds decides whether the run resumes, and nothing is lost or done twice."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miles.config.resolution import Resolution
from miles.config.toml_out import config_toml
from miles.errors import ConfigError, Problem
from miles.tracking.metrics_file import set_aside_rows_after
from miles.tracking.run_folder import RunFolder, RunState, read_state

CONFIG_FILE = "config.toml"
MAY_CHANGE = frozenset(
    {"num_rollout", "num_epoch", "save_interval", "eval_interval", "run_dir", "save", "skip_eval_before_train"}
)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins.

    checkpoint: None for a run that begins anew.
    """

    state: RunState
    checkpoint: Path | None = None


def find_start(folder: RunFolder, resolution: Resolution) -> Start:
    """What the folder says; refuses what cannot be resumed, changes nothing.

    Raises:
        ConfigError: an asynchronous run is to be resumed, or the configuration is not the recorded one.
        CheckpointError: the checkpoint is damaged.
    """
    checkpoint = folder.latest()
    if not folder.has_rows and checkpoint is None:
        return Start(RunState(0, 0))
    if resolution.command != "train":
        why = f"resuming `miles {resolution.command}` is not available yet: groups in flight would be lost"
        raise ConfigError([Problem("run_dir", str(folder.path), "--run-dir", why, "Give a new --run-dir, or leave it out")])
    refuse_other_configuration(folder, resolution)
    return Start(RunState(0, 0)) if checkpoint is None else Start(read_state(checkpoint), checkpoint)


def refuse_other_configuration(folder: RunFolder, resolution: Resolution) -> None:
    """A resumed run is the same run: only its length and cadence may change."""
    recorded = flat((folder.path / CONFIG_FILE).read_text())
    wanted = flat(config_toml(resolution))
    changed = [key for key in sorted(recorded.keys() | wanted.keys()) if recorded.get(key) != wanted.get(key)]
    problems = [
        Problem(
            key,
            str(wanted.get(key, "not given")),
            "",
            f"the run in {folder.path} was started with {recorded.get(key, 'no value')}",
            "Give that value, or a new --run-dir",
        )
        for key in changed
        if key not in MAY_CHANGE
    ]
    if problems:
        raise ConfigError(problems)


def flat(text: str) -> dict[str, Any]:
    """Keys and values of a config.toml without its tables."""
    keys: dict[str, Any] = {}
    tables = [tomllib.loads(text)]
    while tables:
        for key, value in tables.pop().items():
            if isinstance(value, dict) and key.startswith("train"):
                tables.append(value)
            else:
                keys[key] = value
    return keys


def record_start(folder: RunFolder, resolution: Resolution, start: Start) -> int:
    """Write config.toml and move rows after the checkpoint aside; returns how many rows moved."""
    (folder.path / CONFIG_FILE).write_text(config_toml(resolution))
    return set_aside_rows_after(folder.path, start.state.rollouts_done - 1) if folder.has_rows else 0
