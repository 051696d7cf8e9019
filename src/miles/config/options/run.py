"""The run folder, seeds and trackers."""

from pathlib import Path

from miles.config.options.base import OptionSet, option

PANEL = "Run"
TRACKERS = "trackers other than metrics.jsonl"


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
        "Write TensorBoard files into the run folder.",
        panel=PANEL,
        usual=False,
        not_yet=TRACKERS,
        on_resume="safe",
    )
    use_wandb: bool = option(False, "Log to Weights & Biases.", panel=PANEL, usual=False, not_yet=TRACKERS, on_resume="safe")
    wandb_key: str | None = option(
        None, "API key of Weights & Biases.", panel=PANEL, usual=False, secret=True, not_yet=TRACKERS, on_resume="safe"
    )
    use_trackio: bool = option(False, "Log to trackio.", panel=PANEL, usual=False, not_yet=TRACKERS, on_resume="safe")
