"""Runs as their folders tell: how they stand, how far they came, what they measured and saved.

Reads files only, and imports neither torch nor Ray.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from miles.config.changes import flat
from miles.config.records import Record, is_run_folder, read_record
from miles.errors import CheckpointError, MilesError
from miles.tracking.last_start import LastStart, read_last_start
from miles.tracking.metrics_file import FILE_NAME, evals_in, read_rows
from miles.tracking.run_folder import STATE_FILE, RunFolder
from miles.types import Metrics

State = Literal["running", "done", "stopped", "failed", "died"]
SIGNALS = (130, 143)
LENGTHS = ("num_rollout", "train_iters")  # how many rollouts, or of ``miles sft`` how many steps
STEP = "perf/step_time"  # rows of steps have it, those of evaluations do not


@dataclass(frozen=True, slots=True)
class SavedStep:
    """One checkpoint.

    step: rollouts trained before it.
    is_whole: all its parts are there.
    is_latest: a resume starts from it.
    """

    step: int
    path: Path
    is_whole: bool
    is_latest: bool


@dataclass(frozen=True, slots=True)
class PastRun:
    """One run.

    num_rollout: rollouts (of ``miles sft`` steps) of the whole run; None where its record does not say.
    rollouts_done: those that have a row of metrics.
    last_row: the row of the step trained last; empty before the first.
    evaluations: data set → first and last result.
    last_start: None for a run of a version that did not write it down.
    """

    path: Path
    record: Record
    num_rollout: int | None
    rollouts_done: int
    last_row: Metrics
    evaluations: Mapping[str, tuple[float, float]]
    checkpoints: tuple[SavedStep, ...]
    last_start: LastStart | None

    @property
    def state(self) -> State:
        """``died``: its process is gone without having said how it ended."""
        start = self.last_start
        if start is not None and start.is_alive():
            return "running"
        if start is None or start.exit_code == 0 or start.exit_code in SIGNALS:
            return "done" if self.rollouts_done == self.num_rollout else "stopped"
        return "died" if start.exit_code is None else "failed"

    def value(self, option: str) -> str:
        """What the run used for an option, as text; empty where that is not recorded."""
        return next((row.value for row in self.record.rows if row.option == option), "")


def runs_under(root: Path) -> Iterator[Path]:
    """The run folders in a folder, or the folder itself if it is one; the one that was touched last comes first."""
    found = [root] if is_run_folder(root) else [path for path in root.glob("*") if is_run_folder(path)]
    yield from sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def read_run(folder: Path) -> PastRun:
    """The run in a folder.

    Raises:
        ConfigError: there is none.
        CheckpointError: its metrics or its config.toml are damaged.
    """
    record = read_record(folder)
    rows = read_rows(folder / FILE_NAME)
    steps = [row for row in rows if STEP in row]
    total = next((row.value for row in record.rows if row.option in LENGTHS), "")
    return PastRun(
        path=folder,
        record=record,
        num_rollout=int(total) if total.isdigit() else None,
        rollouts_done=int(steps[-1]["rollout_id"]) + 1 if steps else 0,
        last_row=steps[-1] if steps else {},
        evaluations=_evaluations(rows),
        checkpoints=tuple(saved_steps(folder)),
        last_start=read_last_start(folder),
    )


def saved_steps(run: Path) -> Iterator[SavedStep]:
    """The checkpoints of a run, the oldest first.

    Raises:
        CheckpointError: the folder holds no run.
    """
    folder = RunFolder(run.absolute(), checkpoints_of(run))
    try:
        latest = folder.latest()
    except CheckpointError:  # the pointer is wrong, which a resume says; what there is can be listed all the same
        latest = None
    for path in sorted(folder.checkpoints.glob("rollout-*")):
        number = path.name.removeprefix("rollout-")
        if number.isdigit():
            yield SavedStep(int(number) + 1, path, (path / STATE_FILE).is_file(), path == latest)


def checkpoints_of(run: Path) -> Path:
    """Where the run keeps its checkpoints.

    Raises:
        CheckpointError: the folder holds no run.
    """
    try:
        saved = flat((run / "config.toml").read_text()).get("save")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CheckpointError(f"{run} holds no run that can be read: {error}. Give a run folder, such as runs/…") from error
    return Path(saved).absolute() if saved else run.absolute() / "checkpoints"


def read_or_say(folder: Path) -> PastRun | str:
    """The run in a folder, or why it cannot be read."""
    try:
        return read_run(folder)
    except MilesError as error:
        return str(error)


def _evaluations(rows: list[Metrics]) -> Mapping[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for row in rows:
        for name, value in evals_in(row).items():
            first, _ = found.get(name, (value, value))
            found[name] = (first, value)
    return found
