"""The run folder, seeds and trackers."""

from pathlib import Path
from typing import Literal

from miles.config.options.base import OptionSet, option

PANEL = "Run"


class RunOptions(OptionSet):
    """Where a run writes and what makes it repeatable."""

    run_dir: Path | None = option(
        None,
        "Run folder; the same folder again resumes. By default a new folder under `runs`.",
        panel=PANEL,
        kind="folder",
        on_resume="safe",
    )
    accept_changes: bool = option(
        False,
        "Resume although options change the course of the run; what changes is printed.",
        panel=PANEL,
        usual=False,
        on_resume="safe",
    )
    accept_missing_state: bool = option(
        False,
        "Resume although the saved state is missing or damaged: what cannot be read starts anew, and the run says what is lost.",
        panel=PANEL,
        usual=False,
        on_resume="safe",
    )
    seed: int = option(1234, "Seed of the policy.", panel=PANEL, ge=0, on_resume="course")
    deterministic: bool = option(
        False, "Same seed, same bits: fixed shapes in the engine, one order everywhere.", panel=PANEL, on_resume="course"
    )
    use_tensorboard: bool = option(
        False,
        "Also write event files for TensorBoard into `tensorboard` of the run folder.",
        panel=PANEL,
        usual=False,
        on_resume="safe",
    )
    use_wandb: bool = option(False, "Also log to Weights & Biases.", panel=PANEL, usual=False, on_resume="safe")
    wandb_key: str | None = option(
        None,
        "API key of Weights & Biases; by default what `wandb login` or $WANDB_API_KEY says.",
        panel=PANEL,
        usual=False,
        secret=True,
        counts_when={"use_wandb": [True]},
        on_resume="safe",
    )
    wandb_mode: Literal["online", "offline"] = option(
        "online",
        "`offline` writes into the run folder alone; `wandb sync` sends it later.",
        panel=PANEL,
        usual=False,
        counts_when={"use_wandb": [True]},
        on_resume="safe",
    )
    use_trackio: bool = option(False, "Also log to trackio.", panel=PANEL, usual=False, on_resume="safe")
    tracking_project: str = option(
        "miles",
        "Project of Weights & Biases and trackio; the run is called like its folder.",
        panel=PANEL,
        usual=False,
        min_length=1,
        counts_when={"use_wandb": [True], "use_trackio": [True]},
        on_resume="safe",
    )
