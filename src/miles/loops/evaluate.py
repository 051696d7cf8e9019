"""Evaluation: held-out prompts answered with the engines' current weights; the result names their version."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from miles.errors import RolloutError
from miles.failures import first_failure
from miles.rollout.contracts import GroupGenerator
from miles.types import Metrics, Prompt, Sample, SampleStatus, mean


@dataclass(frozen=True, slots=True)
class EvalDataset:
    """Held-out prompts under the name that metrics carry."""

    name: str
    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True)
class EvalInput:
    """What an evaluation function is given.

    weight_version: the version every engine holds while it runs.
    generate_group: samples with the evaluation's parameters and scores.
    """

    datasets: tuple[EvalDataset, ...]
    generate_group: GroupGenerator
    weight_version: int


EvalFn = Callable[[EvalInput], Awaitable[Metrics]]


@dataclass(frozen=True, slots=True)
class BoundEvaluator:
    """An evaluation function with its data; called with the version that is to be measured."""

    evaluate: EvalFn
    datasets: tuple[EvalDataset, ...]
    generate_group: GroupGenerator

    async def __call__(self, weight_version: int) -> Metrics:
        """``eval/<name>`` and companions."""
        return await self.evaluate(EvalInput(self.datasets, self.generate_group, weight_version))


class Loader(Protocol):
    """Brings the evaluation's own engines to the weights of a snapshot."""

    async def publish(self, version: int) -> Metrics:
        """Return when every engine has acknowledged ``version``."""
        ...


@dataclass(frozen=True, slots=True)
class FleetMeasure:
    """Measures a snapshot on engines that do nothing else (``--eval-num-gpus``).

    folder: where the loader looks for ``version-N``.
    """

    loader: Loader
    evaluator: BoundEvaluator
    folder: Path

    async def __call__(self, folder: Path, weight_version: int) -> Metrics:
        """Load the snapshot, then evaluate it."""
        moved(folder, self.folder / folder.name)
        await self.loader.publish(weight_version)
        return await self.evaluator(weight_version)


def moved(folder: Path, target: Path) -> None:
    """Put a folder where the loader looks for it, in the place of what stood there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    folder.rename(target)


async def evaluate(setup: EvalInput) -> Metrics:
    """The standard evaluation: mean reward, length and truncation of every data set."""
    metrics: Metrics = {}
    for dataset in setup.datasets:
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(answer(setup, prompt)) for prompt in dataset.prompts]
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from failures
        answers = [task.result() for task in running]
        samples = [sample for group in answers for sample in group]
        refuse_other_versions(dataset.name, samples, setup.weight_version)
        metrics |= dataset_metrics(dataset.name, samples) | {f"eval/{dataset.name}/timed_out": float(answers.count(()))}
    return metrics


async def answer(setup: EvalInput, prompt: Prompt) -> tuple[Sample, ...]:
    """The scored answers to one held-out prompt; none where they took longer than ``rollout_timeout_seconds``."""
    try:
        return (await setup.generate_group(prompt, setup.weight_version)).samples
    except TimeoutError:
        return ()


def refuse_other_versions(name: str, samples: list[Sample], weight_version: int) -> None:
    """An evaluation measures one version.

    Raises:
        RolloutError: a token was sampled under another one.
    """
    found = {span.version for sample in samples for span in sample.versions} - {weight_version}
    if found:
        raise RolloutError(
            f"the evaluation of {name} should measure weight version {weight_version}, but tokens came from {sorted(found)}. "
            "Does something else publish weights to these engines?"
        )


def dataset_metrics(name: str, samples: list[Sample]) -> Metrics:
    """Metrics of one data set; a failed reward counts as 0 and is counted."""
    return {
        f"eval/{name}": mean([sample.reward or 0.0 for sample in samples]),
        f"eval/{name}/num_samples": float(len(samples)),
        f"eval/{name}/reward_failed": float(sum(sample.status is SampleStatus.FAILED for sample in samples)),
        f"eval/{name}/response_len/mean": mean([float(len(sample.response_ids)) for sample in samples]),
        f"eval/{name}/truncated_ratio": mean([float(sample.status is SampleStatus.TRUNCATED) for sample in samples]),
    }
