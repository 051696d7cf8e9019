"""Weights & Biases: one run there for each run folder, also over several starts; its files lie in ``<run>/wandb``."""

import wandb

from miles.config.options.run import RunOptions
from miles.errors import TrackerError
from miles.tracking.trackers import TrackedRun, failing_as, id_of
from miles.types import Metrics

ID_FILE = "wandb_id"
REACH_SECONDS = 30.0
SEND_SECONDS = 60.0
OFFLINE = "--wandb-mode offline writes its files here, to be sent later with `wandb sync`"
REMEDY = f"{OFFLINE}; or leave --use-wandb out."


class WandbRun:
    """Logs against ``rollout_id``, since an evaluation beside training may come after rows of later steps."""

    name = "Weights & Biases"

    def __init__(self, run: TrackedRun) -> None:
        """Start a run there, or go on with that of the folder.

        Raises:
            TrackerError: it cannot be reached, refuses the key, or there is none.
        """
        with failing_as(self.name, "start", REMEDY):
            self._run = started(run, run.options)
            self._run.define_metric("*", step_metric="rollout_id")

    def log(self, row: Metrics, step: int) -> None:
        """Hand the row to the library's own process."""
        with failing_as(self.name, "take a row"):
            self._run.log(row)

    def close(self, *, failed: bool) -> None:
        """Wait until everything is sent, but not for ever: what is left can be sent with ``wandb sync``."""
        with failing_as(self.name, "send its last rows", "They are in the run folder; `wandb sync` sends them."):
            self._run.finish(exit_code=int(failed))


def started(run: TrackedRun, options: RunOptions) -> wandb.Run:
    """The run there. Rows and options go, secrets masked; output, code, repository, machine and command line stay here."""
    if options.wandb_mode == "online" and options.wandb_key is None and not wandb.login(prompt=False):
        raise TrackerError("there is no API key. Pass --wandb-key, set $WANDB_API_KEY, or run `wandb login` once")
    settings = wandb.Settings(
        api_key=options.wandb_key, console="off", silent=True, disable_git=True, disable_code=True, init_timeout=REACH_SECONDS,
        x_disable_meta=True, finish_timeout=SEND_SECONDS, finish_timeout_raises=True,
    )  # fmt: skip
    return wandb.init(
        project=options.tracking_project, name=run.folder.name, id=id_of(run.folder, ID_FILE), resume="allow",
        dir=str(run.folder), mode=options.wandb_mode, config=dict(run.values), allow_val_change=True, settings=settings,
    )  # fmt: skip
