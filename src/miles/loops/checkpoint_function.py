"""An evaluation of the user's that is given a checkpoint folder (``--eval-checkpoint-function-path``), in a process of its own.

    def evaluate(folder: Path, weight_version: int) -> Mapping[str, float]        plain or async

The folder is an HF folder with the published weights and the tokenizer. The numbers stand in ``metrics.jsonl`` as
``eval/<name>``.
Run as ``python -m miles.loops.checkpoint_function DOTTED_PATH FOLDER VERSION RESULT``.
"""

import asyncio
import inspect
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from miles.config.dotted import load_dotted
from miles.engines.last_lines import last_lines
from miles.errors import RolloutError
from miles.types import Metrics

OPTION, KIND = "eval_checkpoint_function_path", "evaluate_checkpoint"


@dataclass(frozen=True, slots=True)
class CheckpointFunction:
    """Calls the function at ``path`` in a new process for each snapshot, which is removed afterwards.

    log: file for the output of the processes.
    """

    path: str
    log: Path

    async def __call__(self, folder: Path, weight_version: int) -> Metrics:
        """The function's numbers; cancelling the call kills the process.

        Raises:
            RolloutError: it failed, or returned something else than numbers; with the end of its output.
        """
        result = folder.parent / f"result-{weight_version}.json"
        arguments = [self.path, str(folder), str(weight_version), str(result)]
        try:
            with self.log.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "miles.loops.checkpoint_function", *arguments,
                    stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=environment(), start_new_session=True,
                )  # fmt: skip
            if await ended(process) != 0:
                raise RolloutError(
                    f"the evaluation {self.path} of weights version {weight_version} failed (--{OPTION.replace('_', '-')}). "
                    f"The end of {self.log}:\n{last_lines(self.log)}"
                )
            metrics: Metrics = json.loads(result.read_text())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            result.unlink(missing_ok=True)
        return metrics


def environment() -> dict[str, str]:
    """That of this process, so that the function is found where the resolver found it."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


async def ended(process: asyncio.subprocess.Process) -> int:
    """The exit code; a process whose end nobody waits for any more is killed."""
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def numbers_of(returned: Any) -> Metrics:
    """What the function returned, under the names of the metrics.

    Raises:
        TypeError: it is no mapping of names to numbers.
    """
    if not isinstance(returned, Mapping) or not all(isinstance(value, Real) for value in returned.values()):
        raise TypeError(f"the evaluation returned {str(returned)[:80]!r}, not numbers by name")
    return {str(name) if str(name).startswith("eval/") else f"eval/{name}": float(value) for name, value in returned.items()}


def main(path: str, folder: str, weight_version: str, result: str) -> None:
    """Call the function and write its numbers."""
    returned = load_dotted(path, OPTION, kind=KIND)(Path(folder), int(weight_version))
    if inspect.isawaitable(returned):
        returned = asyncio.run(awaited(returned))
    Path(result).write_text(json.dumps(numbers_of(returned)))


async def awaited(returned: Any) -> Any:
    """The value of an awaitable."""
    return await returned


if __name__ == "__main__":
    main(*sys.argv[1:])
