"""``metrics.jsonl``: one flat object a line, whole lines only, each on disk before the run goes on.

A resumed run moves the rows after its checkpoint to a side file, so that no step appears twice.
"""

import math
import re
from pathlib import Path
from types import TracebackType

import orjson

from miles.errors import CheckpointError, MilesError
from miles.types import Metrics

FILE_NAME = "metrics.jsonl"
BEFORE_ALL = -2
_EVAL = re.compile(r"eval/(?!weight_version$)([^/]+)")


class MetricsFile:
    """Appends rows to ``metrics.jsonl`` of a run folder."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / FILE_NAME
        self._file = self.path.open("ab", buffering=0)

    def write(self, row: Metrics) -> None:
        """Append one row; numbers that JSON has no word for are written as null.

        Raises:
            MilesError: the file could not be written (disk full, folder gone).
        """
        line = orjson.dumps({key: plain(value) for key, value in row.items()}, option=orjson.OPT_APPEND_NEWLINE)
        try:
            self._file.write(line)
        except OSError as error:
            raise MilesError(
                f"cannot write {self.path}: {error}. Free some space, then start with the same --run-dir."
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def plain(value: float) -> float | int | None:
    """Whole numbers as integers, NaN and infinities as null."""
    if not math.isfinite(value):
        return None
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def read_rows(path: Path) -> list[Metrics]:
    """All rows of a metrics file; a last line that was cut by a crash is left out.

    Raises:
        CheckpointError: a line other than the last is no JSON object.
    """
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    rows: list[Metrics] = []
    for number, line in enumerate(lines, 1):
        try:
            rows += [orjson.loads(line)] if line.strip() else []
        except orjson.JSONDecodeError as error:
            if any(rest.strip() for rest in lines[number:]):
                raise CheckpointError(
                    f"{path}:{number}: not a JSON object ({error}). Restore the line or use a new --run-dir."
                ) from error
    return rows


def set_aside_rows_after(run_dir: Path, last_rollout_id: int) -> int:
    """Move rows with a later ``rollout_id`` to ``metrics.after-N.jsonl``; returns how many there were.

    A run that begins anew has ``BEFORE_ALL`` as its last rollout: the first evaluation's row, of rollout -1, moves too.
    """
    path = run_dir / FILE_NAME
    rows = read_rows(path)
    later = [row for row in rows if row["rollout_id"] > last_rollout_id]
    if not later and path.read_bytes().endswith(b"\n"):
        return 0
    name = "start" if last_rollout_id == BEFORE_ALL else last_rollout_id
    side = run_dir / f"metrics.after-{name}.jsonl"
    with side.open("ab") as file:
        file.writelines(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in later)
    kept = [orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows if row["rollout_id"] <= last_rollout_id]
    aside = path.with_suffix(".tmp")
    aside.write_bytes(b"".join(kept))
    aside.replace(path)
    return len(later)


def evals_in(row: Metrics) -> Metrics:
    """Evaluation results of a row, by data set: ``reverse`` for ``eval/reverse``."""
    return {match[1]: value for key, value in row.items() if (match := _EVAL.fullmatch(key))}


def last_evaluated(run_dir: Path) -> int:
    """After how many rollouts the last evaluation was made; -1 where there is none."""
    rows = read_rows(run_dir / FILE_NAME)
    return max((int(row["rollout_id"]) + 1 for row in rows if "eval/weight_version" in row), default=-1)
