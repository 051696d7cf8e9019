"""Weights & Biases: one run there for each run folder, also over several starts; its files lie in ``<run>/wandb``."""

import uuid
from pathlib import Path

import wandb

from miles.config.options.run import RunOptions
from miles.tracking.trackers import TrackedRun, failing_as
from miles.types import Metrics

ID_FILE = "wandb_id"
REACH_SECONDS = 30.0
REMEDY = "Pass --wandb-mode offline to write its files here and send them later with `wandb sync`, or leave --use-wandb out."


class WandbRun:
    """Logs against ``rollout_id``, since an evaluation beside training may come after rows of later steps."""

    name = "Weights & Biases"

    def __init__(self, run: TrackedRun) -> None:
        """Start a run there, or go on with that of the folder.

        Raises:
            TrackerError: it cannot be reached, or refuses the key.
        """
        with failing_as(self.name, "start", REMEDY):
            self._run = started(run, run.options)
            self._run.define_metric("*", step_metric="rollout_id")

    def log(self, row: Metrics, step: int) -> None:
        """Hand the row to the library's own process."""
        with failing_as(self.name, "take a row"):
            self._run.log(row)

    def close(self) -> None:
        """Wait until everything is sent."""
        with failing_as(self.name, "send its last rows"):
            self._run.finish()


def started(run: TrackedRun, options: RunOptions) -> wandb.Run:
    """The run there; nothing of this process's output, code or repository goes with it."""
    settings = wandb.Settings(
        api_key=options.wandb_key, console="off", silent=True, disable_git=True, disable_code=True, init_timeout=REACH_SECONDS
    )
    return wandb.init(
        project=options.tracking_project, name=run.folder.name, id=id_of(run.folder), resume="allow", dir=str(run.folder),
        mode=options.wandb_mode, config=dict(run.values), allow_val_change=True, settings=settings,
    )  # fmt: skip


def id_of(folder: Path) -> str:
    """The run's id there, made at the first start."""
    path = folder / ID_FILE
    if not path.exists():
        path.write_text(uuid.uuid4().hex[:8])
    return path.read_text().strip()
