"""From a resolved configuration to a finished run: everything around the loop, on the way up and on the way down.

folder ─► Ray ─► engines and trainer ─► rollout side ─► loop ─► last checkpoint ─► summary
                              each is ended in reverse order, whatever happens
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from miles.clock import WallClock
from miles.config.facts import checkpoint_in
from miles.config.resolution import Resolution
from miles.config.user_code import check_user_code
from miles.engines.wire import PauseMode
from miles.errors import CheckpointError, MilesError
from miles.long_lived import keep_what_is_loaded
from miles.loops.data import RunData, load_data
from miles.loops.endings import held_folder, interruptible, tell_start, told_how_it_ends, tracked
from miles.loops.evaluation import EvaluationParts, bound_evaluator, evaluation_beside, goes_beside
from miles.loops.parts import Cadence, Parts, Saver, StopFlag
from miles.loops.patience import Patience
from miles.loops.processes import Processes, other_children, processes
from miles.loops.publishing import publisher_of
from miles.loops.records import CheckpointSaver, RunJournal
from miles.loops.resume import Start, find_start, with_ledger
from miles.loops.retention import RetainingSaver
from miles.loops.run import Run
from miles.loops.schedules import run_schedule
from miles.loops.turns import PolicyInTurn
from miles.loops.watch import until_done
from miles.loops.work import note_work
from miles.placement.cluster import Cluster, open_cluster
from miles.placement.map import seats
from miles.rollout.build import RolloutSide, build_rollout
from miles.tracking.cpu_clocks import ENGINES, CpuClocks
from miles.tracking.metrics_file import MetricsFile, last_evaluated
from miles.tracking.reporter import Reporter, RunSummary
from miles.tracking.run_folder import RunFolder
from miles.tracking.trace import Trace
from miles.weights.folder import weights_folder
from miles.weights.publish import Publisher

RESCUE_SECONDS = 60.0


@dataclass(slots=True)
class Attempt:
    """What one start knows from beginning to end."""

    resolution: Resolution
    reporter: Reporter
    data: RunData
    folder: RunFolder
    start: Start
    journal: RunJournal
    trace: Trace
    clock: WallClock = field(default_factory=WallClock)
    stop: StopFlag = field(default_factory=StopFlag)
    run: Run | None = None


def start_run(resolution: Resolution, reporter: Reporter) -> int:
    """Run to the end, resume included; returns the exit code (0 done, 130 or 143 after a signal).

    Raises:
        MilesError: the run could not start or failed; what was trained until then is saved where possible.
    """
    clock = WallClock()
    began = clock.now()
    check_user_code(resolution)
    data = load_data(resolution.config, resolution.derived)
    with held_folder(resolution) as folder:
        start = with_ledger(find_start(folder, resolution), resolution, data.prompts)
        tell_start(folder, resolution, start, reporter)
        with MetricsFile(folder.path) as metrics:
            journal = RunJournal(metrics, reporter, resolution.derived.num_rollout)
            trace = Trace(folder.path / "trace.json", clock)
            attempt = Attempt(resolution, reporter, data, folder, start, journal, trace, clock)

            def summary(exit_code: int) -> RunSummary:
                return summary_of(attempt, exit_code, clock.now() - began)

            def run() -> int:
                return tracked(journal, folder.path, resolution, start, lambda: on_cluster(attempt))

            return told_how_it_ends(folder, trace, reporter, run, summary)


def on_cluster(attempt: Attempt) -> int:
    """Hold the seats while the run lasts."""
    config, derived, note = attempt.resolution.config, attempt.resolution.derived, attempt.reporter.note
    attempt.reporter.stage("starting Ray")
    cluster = open_cluster(seats(config, derived), config.cluster.ray_address)
    try:
        work = whole_run(attempt, cluster)
        return asyncio.run(interruptible(work, attempt.stop, note, lambda: attempt.run is not None))
    finally:
        cluster.close()


async def whole_run(attempt: Attempt, cluster: Cluster) -> None:
    """Start the processes, build the parts, run the loop."""
    config, derived, reporter = attempt.resolution.config, attempt.resolution.derived, attempt.reporter
    reporter.stage("starting engines and the policy")
    async with processes(config, derived, cluster, attempt.folder.logs, reporter.note) as running:
        attempt.trace.watch_cpu(CpuClocks(running.pids, other_children(running.pids)))
        state, data, ledger = attempt.start.state, attempt.data, attempt.start.ledger
        side = build_rollout(
            config, derived, data.tokenizer, running.engines, attempt.clock, reporter.note,
            first_rollout_id=state.rollouts_done, weight_version=state.weight_version, ledger=ledger, source=data.prompts,
        )  # fmt: skip
        try:
            with weights_folder() as weights:
                mode, note = pause_mode(attempt.resolution), reporter.note
                async with publisher_of(attempt.resolution, running, weights, mode, attempt.clock, note) as publisher:
                    await train(attempt, running, side, weights, publisher)
        finally:
            await side.close()


async def train(attempt: Attempt, running: Processes, side: RolloutSide, weights: Path, publisher: Publisher) -> None:
    """The loop, watched; after a failure what is trained is saved."""
    resolution, state = attempt.resolution, attempt.start.state
    begins_elsewhere = attempt.start.checkpoint is not None or resolution.config.model.load is not None
    if begins_elsewhere and running.turns is not None:
        await running.turns.give_to_policy("the policy's devices for what it begins with")
    if attempt.start.checkpoint is not None:
        attempt.reporter.stage(f"loading {attempt.start.checkpoint.name}")
        await running.policy.load(attempt.start.checkpoint)
    elif resolution.config.model.load is not None:
        attempt.reporter.stage(f"loading {resolution.config.model.load}")
        await running.policy.load(checkpoint_in(resolution.config.model.load), anew=True)
    if begins_elsewhere or resolution.config.engine.rollout_external_engine_addrs:
        await publisher.publish(state.weight_version)
    given = EvaluationParts(
        running.policy, resolution, attempt.data, side.rewards, weights, attempt.folder.logs, attempt.clock, attempt.trace,
        attempt.reporter.note, begins_elsewhere,
    )  # fmt: skip
    beside = evaluation_beside(given, running.eval_engines)
    evaluator = None if goes_beside(resolution) else bound_evaluator(given, running.engines)
    model = resolution.config.model
    saver: Saver = CheckpointSaver(
        attempt.folder, running.policy, side.ledger, attempt.reporter.note, model.async_save,
        source_state=lambda: side.source.state(side.ledger),
    )  # fmt: skip
    if model.keep_checkpoints is not None:
        saver = RetainingSaver(saver, attempt.folder, attempt.journal, model.keep_checkpoints, model.keep_best_by, awaited=beside)
    policy = running.policy if running.turns is None else PolicyInTurn(running.policy, running.turns)
    parts = Parts(side.fn, side.ledger, policy, publisher, evaluator, saver, attempt.journal, beside)
    run = Run(
        parts, cadence_of(resolution), attempt.clock, attempt.trace, attempt.stop, state.rollouts_done, state.weight_version,
        evaluated_after=last_evaluated(attempt.folder.path),
        patience=Patience(attempt.clock, resolution.config.rollout.no_progress_seconds, attempt.reporter.note),
    )  # fmt: skip
    attempt.run = run
    attempt.reporter.stage("training")
    keep_what_is_loaded()
    work = asyncio.create_task(run_schedule(run, resolution.derived.schedule), name="loop")
    try:
        await until_done(work, running.deaths)
        if ENGINES in running.pids:
            await note_work(attempt.trace, running.engines, attempt.reporter.note)
    except Exception as error:
        if not isinstance(error, CheckpointError):
            await rescue(run, attempt.reporter)
        raise
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        if beside is not None:
            await beside.close()


async def rescue(run: Run, reporter: Reporter) -> None:
    """Save what is trained after a failure, unless the policy was in the middle of a step or is gone itself."""
    is_whole = not run.training and run.rollouts_done != run.saved_after
    try:
        async with asyncio.timeout(RESCUE_SECONDS):
            if is_whole:
                await run.save()
            await run.settle()
    except (MilesError, TimeoutError) as error:
        reporter.note(f"the state after rollout {run.rollouts_done - 1} could not be saved: {error}")
        return
    if is_whole:
        reporter.note(f"the state after rollout {run.rollouts_done - 1} is saved")


def cadence_of(resolution: Resolution) -> Cadence:
    """When the run publishes, evaluates and saves."""
    config, derived = resolution.config, resolution.derived
    return Cadence(
        total=derived.num_rollout,
        update_weights_interval=derived.update_weights_interval,
        eval_interval=config.evaluation.eval_interval,
        save_interval=config.model.save_interval,
        eval_before_train=not config.evaluation.skip_eval_before_train,
    )


def pause_mode(resolution: Resolution) -> PauseMode:
    """What an update does to running requests; without a producer there are none."""
    mode: Literal["retract", "in_place"] = getattr(resolution.config.rollout, "pause_generation_mode", "retract")
    return mode


def summary_of(attempt: Attempt, exit_code: int, seconds: float) -> RunSummary:
    """How the run ended."""
    done = attempt.run.rollouts_done if attempt.run else attempt.start.state.rollouts_done
    journal = attempt.journal
    return RunSummary(
        attempt.folder.path, exit_code, done, seconds, journal.first_eval, journal.last_eval, attempt.folder.latest()
    )
