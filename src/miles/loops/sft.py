"""``miles sft``: a trainer without engines, from a resolved configuration to a finished run.

examples ─► batch of a step ─► ranks ─► row          held-out loss and checkpoints between the steps, as in the other commands
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from miles.clock import WallClock
from miles.config.commands import SftConfig, TrainConfig
from miles.config.derived import Derived
from miles.config.facts import checkpoint_in
from miles.config.options.algorithm import AlgorithmOptions
from miles.config.options.data import DataOptions
from miles.config.options.lora import PublishedLoraOptions
from miles.config.options.model import ModelOptions
from miles.config.options.placement import Disaggregated
from miles.config.options.reward import RewardOptions
from miles.config.resolution import Resolution
from miles.loops.data import load_tokenizer
from miles.loops.endings import held_folder, interruptible, tell_start, told_how_it_ends, tracked
from miles.loops.examples import ExampleFormat, ExampleSource, read_examples
from miles.loops.parts import Cadence, Saver, StopFlag
from miles.loops.processes import policy_ranks
from miles.loops.records import CheckpointSaver, RunJournal
from miles.loops.resume import Start, find_start
from miles.loops.retention import RetainingSaver
from miles.placement.cluster import open_cluster
from miles.placement.map import seats
from miles.policy.client import PolicyClient
from miles.policy.examples import Example, batch_of
from miles.tracking.metrics_file import MetricsFile, last_evaluated
from miles.tracking.reporter import Reporter, RunSummary
from miles.tracking.run_folder import RunFolder
from miles.tracking.trace import Trace
from miles.types import Group, Metrics

KEPT = ("train/loss", "train/grad_norm", "train/lr")
INITIAL = "initial"  # in the run folder: the weights that a run with --random-weights begins with
LOSS = "miles.policy.losses:answer_loss"


@dataclass(slots=True)
class Supervised:
    """What one start knows from beginning to end."""

    resolution: Resolution[SftConfig]
    reporter: Reporter
    examples: ExampleSource
    heldout: Mapping[str, Sequence[Example]]
    folder: RunFolder
    start: Start
    journal: RunJournal
    trace: Trace
    clock: WallClock
    steps_done: int
    evaluated_after: int
    saved_after: int
    stop: StopFlag = field(default_factory=StopFlag)
    stepping: bool = False


class NoLedger:
    """Examples need none: a step's follow from its number."""

    def snapshot(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def kept(self) -> tuple[Group, ...]:
        """Nothing."""
        return ()


def start_sft(resolution: Resolution[SftConfig], reporter: Reporter) -> int:
    """Run to the end, resume included; returns the exit code (0 done, 130 or 143 after a signal).

    Raises:
        MilesError: the run could not start or failed.
    """
    clock, config, derived = WallClock(), resolution.config, resolution.derived
    began = clock.now()
    tokenizer: Any = load_tokenizer(config.model.hf_checkpoint)
    example_format = ExampleFormat.from_config(config, derived.max_context_len)
    examples = read_examples(config.data.prompt_data, tokenizer, example_format)
    heldout = {name: read_examples(path, tokenizer, example_format) for name, path in config.evaluation.eval_prompt_data}
    source = ExampleSource(examples, derived.global_batch_size, config.run.seed if config.data.shuffle else None)
    with held_folder(resolution) as folder:
        start = find_start(folder, resolution)
        tell_start(folder, resolution, start, reporter)
        with MetricsFile(folder.path) as metrics:
            journal, trace = RunJournal(metrics, reporter, derived.num_rollout), Trace(folder.path / "trace.json", clock)
            done = start.state.rollouts_done
            run = Supervised(
                resolution,
                reporter,
                source,
                heldout,
                folder,
                start,
                journal,
                trace,
                clock,
                done,
                last_evaluated(folder.path),
                done,
            )

            def summary(exit_code: int) -> RunSummary:
                seconds = clock.now() - began
                return RunSummary(
                    folder.path, exit_code, run.steps_done, seconds, journal.first_eval, journal.last_eval, folder.latest()
                )

            def steps() -> int:
                return tracked(journal, folder.path, resolution, start, lambda: on_cluster(run))

            return told_how_it_ends(folder, trace, reporter, steps, summary)


def on_cluster(run: Supervised) -> int:
    """Hold the seats while the run lasts."""
    config, folder = run.resolution.config, run.folder.path / INITIAL
    if config.model.random_weights and not folder.exists():
        from miles.policy.random_model import write_random_model

        run.reporter.stage("drawing random weights")
        write_random_model(config.model.hf_checkpoint, folder, config.run.seed)
    beginning = folder if config.model.random_weights else config.model.hf_checkpoint
    trained, derived = as_train(config, run.resolution.derived, beginning)
    run.reporter.stage("starting Ray")
    cluster = open_cluster(seats(trained, derived), config.cluster.ray_address)
    try:

        async def work() -> None:
            run.reporter.stage("starting the policy")
            async with policy_ranks(trained, derived, cluster, run.folder.logs) as policy:
                await policy.info()
                for note in policy.notes:
                    run.reporter.note(note)
                await learn(run, policy)

        return asyncio.run(interruptible(work(), run.stop, run.reporter.note, lambda: run.stepping))
    finally:
        cluster.close()


def as_train(config: SftConfig, derived: Derived, beginning: Path) -> tuple[TrainConfig, Derived]:
    """The same trainer as ``miles train`` has, told to lower −log π of the answers: one sample a group, one step a rollout."""
    model = config.model
    trained = TrainConfig(
        model=ModelOptions(
            hf_checkpoint=beginning,
            dtype=model.dtype,
            gradient_checkpointing=model.gradient_checkpointing,
            async_save=model.async_save,
        ),
        lora=PublishedLoraOptions(**config.lora.model_dump(exclude_unset=True)),
        data=DataOptions(
            prompt_data=config.data.prompt_data,
            num_rollout=derived.num_rollout,
            rollout_batch_size=derived.global_batch_size,
            n_samples_per_prompt=1,
        ),
        reward=RewardOptions(rm_type="exact"),
        algorithm=AlgorithmOptions(custom_loss_function_path=LOSS),
        optimizer=config.optimizer,
        placement=Disaggregated(**config.placement.model_dump()),
        cluster=config.cluster,
        run=config.run,
    )
    return trained, replace(derived, schedule="sync")


async def learn(run: Supervised, policy: PolicyClient) -> None:
    """Every step that is left, and what is due between them."""
    config, derived = run.resolution.config, run.resolution.derived
    if run.start.checkpoint is not None:
        await policy.load(run.start.checkpoint)
    elif config.model.load is not None:
        await policy.load(checkpoint_in(config.model.load), anew=True)
    cadence = Cadence(
        derived.num_rollout,
        eval_interval=config.evaluation.eval_interval,
        save_interval=config.model.save_interval,
        eval_before_train=not config.evaluation.skip_eval_before_train,
    )
    saver: Saver = CheckpointSaver(run.folder, policy, NoLedger(), run.reporter.note, config.model.async_save)
    if config.model.keep_checkpoints is not None:
        saver = RetainingSaver(saver, run.folder, run.journal, config.model.keep_checkpoints, config.model.keep_best_by, sign=-1)
    run.stepping = True
    run.reporter.stage("training")
    try:
        await every_step(run, policy, cadence, saver)
    except Exception:
        await saver.settle()  # what is copied is still written
        raise
    await saver.settle()


async def every_step(run: Supervised, policy: PolicyClient, cadence: Cadence, saver: Saver) -> None:
    """The steps that are left, an evaluation or checkpoint where one is due, and a last checkpoint."""
    if cadence.eval_before_train and run.steps_done == 0:
        await evaluate(run, policy)
    while run.steps_done < cadence.total and not run.stop.requested:
        await take_step(run, policy)
        if cadence.evaluates_after(run.steps_done):
            await evaluate(run, policy)
        if cadence.saves_after(run.steps_done):
            await save(run, saver)
    await save(run, saver)


async def take_step(run: Supervised, policy: PolicyClient) -> None:
    """One optimiser step and its row."""
    step, begin = run.steps_done, run.clock.now()
    batch = batch_of(run.examples.of_step(step), step)
    with run.trace.span("policy", f"step {step}"):
        report = await policy.train_on_batch(batch)
    run.steps_done, seconds = step + 1, max(run.clock.now() - begin, 1e-9)
    row: Metrics = {name: report.metrics[name] for name in KEPT}
    num_tokens = len(batch.prompt_ids) + len(batch.response_ids)
    row |= {"rollout_id": step, "train/num_answer_tokens": int(batch.trained.sum()), "perf/step_time": seconds}
    run.journal.write(row | {"perf/tokens_per_second": num_tokens / seconds}, run.steps_done)


async def evaluate(run: Supervised, policy: PolicyClient) -> None:
    """The mean of −log π over the answers of each held-out file, unless these weights have it already."""
    if not run.heldout or run.evaluated_after == run.steps_done:
        return
    begin = run.clock.now()
    with run.trace.span("evaluation", f"evaluate after {run.steps_done} steps"):
        losses = {f"eval/{name}": await policy.mean_loss(batch_of(found, 0)) for name, found in run.heldout.items()}
    row: Metrics = {"rollout_id": run.steps_done - 1, "eval/weight_version": run.steps_done} | losses
    run.journal.write(row | {"perf/eval_time": run.clock.now() - begin}, run.steps_done)
    run.evaluated_after = run.steps_done


async def save(run: Supervised, saver: Saver) -> None:
    """A checkpoint of this moment, unless it is written already."""
    if run.saved_after == run.steps_done:
        return
    with run.trace.span("checkpoint", f"save after {run.steps_done} steps"):
        await saver.save(run.steps_done, run.steps_done, weights_published=True)
    run.saved_after = run.steps_done
