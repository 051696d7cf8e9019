"""The run folder: what a run leaves behind, and how the next start finds it.

config.toml     re-runs exactly, origins as comments      checkpoints/rollout-000119/{hf,trainer,groups.jsonl,state.json}
config.json     the same with every origin, to be read
metrics.jsonl   one flat object a line                    checkpoints/latest   name of the newest complete one
trace.json      Chrome trace                              logs/
"""

import datetime
import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from miles.errors import CheckpointError, ConfigError, MachineError, Problem

STATE_FILE = "state.json"
GROUPS_FILE = "groups.jsonl"


@dataclass(frozen=True, slots=True)
class RunState:
    """What a checkpoint says about the run beside the policy: read before anything is started.

    rollouts_done: rollouts trained; the next rollout_id.
    weight_version: the version the policy's weights were published under.
    ledger: the ledger's snapshot.
    weights_published: whether the policy's weights are those of ``weight_version``; if not, they are younger.
    groups_digest: of the groups in ``groups.jsonl``, finished and unfinished.
    source: position of a data source of the user's.
    """

    rollouts_done: int
    weight_version: int
    ledger: dict[str, Any] = field(default_factory=dict)
    weights_published: bool = True
    groups_digest: str = ""
    source: Any = None


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run."""

    path: Path
    checkpoints: Path

    @property
    def logs(self) -> Path:
        """Folder of the processes' logs."""
        return self.path / "logs"

    @property
    def has_rows(self) -> bool:
        """Whether a run has written metrics here."""
        metrics = self.path / "metrics.jsonl"
        return metrics.exists() and metrics.stat().st_size > 0

    def checkpoint_for(self, rollout_id: int) -> Path:
        """Folder of the checkpoint written after ``rollout_id``."""
        return self.checkpoints / f"rollout-{rollout_id:06d}"

    def latest(self) -> Path | None:
        """The newest complete checkpoint, None where there is none.

        A run killed between its first checkpoint and the pointer has no pointer yet; the newest complete folder counts then.

        Raises:
            CheckpointError: the pointer names a folder that is gone.
        """
        pointer = self.checkpoints / "latest"
        if not pointer.exists():
            return self.newest_complete()
        folder = self.checkpoints / pointer.read_text().strip()
        if not folder.is_dir():
            raise CheckpointError(
                f"{pointer} names {folder.name}, which is gone. Put it back, write another name into {pointer}, "
                "or pass --accept-missing-state to start anew."
            )
        return folder

    def newest_complete(self) -> Path | None:
        """The checkpoint of the latest rollout that has all its parts."""
        complete = [state.parent for state in self.checkpoints.glob(f"rollout-*/{STATE_FILE}")]
        return max(complete, key=lambda folder: folder.name, default=None)

    def point_latest_at(self, folder: Path) -> None:
        """Make ``folder`` the checkpoint that a resume starts from."""
        aside = self.checkpoints / "latest.tmp"
        try:
            aside.write_text(folder.name + "\n")
            aside.replace(self.checkpoints / "latest")
        except OSError as error:
            raise CheckpointError(f"{aside} cannot be written: {error}. Free some space; {folder} itself is complete.") from error


def open_run_folder(run_dir: Path | None, save: Path | None, command: str) -> RunFolder:
    """Create the folder, or find the one that is there.

    Raises:
        ConfigError: the path cannot be a folder.
    """
    path = run_dir or new_run_path(command)
    folder = RunFolder(path.absolute(), (save or path / "checkpoints").absolute())
    try:
        for part in (folder.path, folder.checkpoints, folder.logs):
            part.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = Problem("run_dir", str(path), "--run-dir", str(error), "Give a folder that can be written")
        raise ConfigError([problem]) from error
    return folder


def refuse_checkpoints_of_another_run(folder: RunFolder) -> None:
    """A new run does not go on from checkpoints that stand in its ``--save`` folder already.

    Raises:
        ConfigError: they do.
    """
    if folder.latest() is None or (folder.path / "config.toml").exists() or folder.has_rows:
        return  # rows without a config.toml are a run whose record is lost, which a resume says
    why = "holds the checkpoints of another run"
    remedy = "Give another --save, or --run-dir with the folder of that run"
    raise ConfigError([Problem("save", str(folder.checkpoints), "--save", why, remedy)])


def new_run_path(command: str) -> Path:
    """A path under ``runs`` that nobody has yet."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    names = [f"{stamp}-{command}"] + [f"{stamp}-{command}-{number}" for number in range(2, 1000)]
    return next(path for name in names if not (path := Path("runs") / name).exists())


def lock_run_folder(folder: RunFolder) -> int:
    """Hold the folder for this process until it ends; returns the open file's descriptor.

    Raises:
        MachineError: another process holds it.
    """
    descriptor = os.open(folder.path / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise MachineError(f"{folder.path} is in use by another miles process. Wait for it or give another --run-dir.") from error
    return descriptor


def write_state(checkpoint: Path, state: RunState) -> None:
    """Write the run's part of a checkpoint.

    Raises:
        CheckpointError: the state of a data source is not JSON-able.
    """
    aside = checkpoint / f"{STATE_FILE}.tmp"
    try:
        text = json.dumps(asdict(state))
    except TypeError as error:
        raise CheckpointError(
            f"the state of the run cannot be saved: {error}. Let the data source give JSON-able prompts and positions"
        ) from error
    aside.write_text(text)
    aside.replace(checkpoint / STATE_FILE)


def read_state(checkpoint: Path) -> RunState:
    """The run's part of a checkpoint.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    path = checkpoint / STATE_FILE
    try:
        return RunState(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}. Point `latest` at an older checkpoint, use a new --run-dir, or pass "
            "--accept-missing-state to start anew."
        ) from error
