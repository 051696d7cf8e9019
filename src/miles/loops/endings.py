"""How a run ends, whatever kind it is: its signals heard, its lock given back, its summary told."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from miles.config.resolution import Resolution
from miles.loops.parts import StopFlag
from miles.loops.records import RunJournal
from miles.loops.resume import Start, record_start, resume_notes
from miles.loops.signals import Interrupts, handling
from miles.placement.logs import stray_output_to
from miles.policy.folders import remove_unfinished
from miles.tracking.last_start import note_end, note_start
from miles.tracking.reporter import Reporter, RunSummary
from miles.tracking.run_folder import RunFolder, lock_run_folder, open_run_folder, refuse_checkpoints_of_another_run
from miles.tracking.trace import Trace
from miles.tracking.trackers import TrackedRun, open_trackers


@contextmanager
def held_folder(resolution: Resolution[Any]) -> Iterator[RunFolder]:
    """The run folder, made or found, for this process alone; what a killed one had not finished is removed.

    Raises:
        ConfigError, MachineError: it cannot be written, is in use, or its checkpoints are another run's.
    """
    config = resolution.config
    folder = open_run_folder(config.run.run_dir, config.model.save, resolution.command)
    lock = lock_run_folder(folder)
    try:
        remove_unfinished(folder.checkpoints)
        refuse_checkpoints_of_another_run(folder)
        yield folder
    finally:
        os.close(lock)


def tell_start(folder: RunFolder, resolution: Resolution[Any], start: Start, reporter: Reporter) -> None:
    """Write down what the run is started with, and tell what is changed, resumed and lost."""
    for change in start.changes:
        reporter.note(f"changed since the last start: {change}")
    moved = record_start(folder, resolution, start)
    for line in resume_notes(start, moved):
        reporter.note(line)


def tracked(journal: RunJournal, folder: Path, resolution: Resolution[Any], start: Start, run: Callable[[], int]) -> int:
    """The run, its rows also going where the options ask for.

    Raises:
        TrackerError: one of the places cannot be reached; nothing was started.
    """
    options, reporter = resolution.config.run, journal.reporter
    if options.use_wandb and options.wandb_mode == "online":
        reporter.stage("reaching Weights & Biases")
    first_step = 0 if start.checkpoint is None else start.state.rollouts_done + 1
    values = {row.option: row.value for row in resolution.rows}
    with open_trackers(TrackedRun(folder, options, first_step, values), reporter.note) as journal.trackers:
        return run()


def told_how_it_ends(
    folder: RunFolder, trace: Trace, reporter: Reporter, run: Callable[[], int], summary: Callable[[int], RunSummary]
) -> int:
    """The run; its summary is given however it ends, so that the user learns where its folder is."""
    exit_code, reason = 1, ""
    last_start = note_start(folder.path)
    try:
        with stray_output_to(folder.logs / "driver.log"):
            exit_code = run()
    except Exception as error:
        exit_code, reason = getattr(error, "exit_code", 1), str(error) or type(error).__name__
        raise
    finally:
        trace.close()
        for problem in filter(None, (trace.problem, note_end(folder.path, last_start, exit_code, reason))):
            reporter.note(problem)
        reporter.finished(summary(exit_code))
    return exit_code


async def interruptible(
    coroutine: Coroutine[Any, Any, None], stop: StopFlag, say: Callable[[str], None], stepping: Callable[[], bool]
) -> int:
    """The run under Ctrl-C and SIGTERM; its exit code."""
    work = asyncio.create_task(coroutine, name="run")
    interrupts = Interrupts(stop, work, say, stepping)
    with handling(interrupts):
        try:
            await work
        except asyncio.CancelledError:
            if not interrupts.exit_code:
                raise
    return interrupts.exit_code
