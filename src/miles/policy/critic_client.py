"""A critic on ranks of its own, beside the policy.

policy   reference ─────┐         ┌─► advantages ─► its steps
critic   values ────────┴─ known ─┴─► returns ────► its steps        each pair at the same time, on ranks of their own
"""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from miles.errors import CriticNotFiniteError
from miles.policy.batch import TrainBatch
from miles.policy.known import Known
from miles.policy.rank_calls import RankCalls
from miles.types import StepReport


async def known_before(policy: RankCalls, critic: RankCalls, batch: TrainBatch) -> Known:
    """What both know of a rollout before its first step; each computes its share while the other does.

    Raises:
        PolicyError: a rank failed, or its process has ended.
    """
    values, known = await asyncio.gather(
        critic.all(f"valuing rollout {batch.rollout_id}", "values", batch),
        policy.all(f"comparing rollout {batch.rollout_id} with the reference", "known", batch),
    )
    return replace(known, values=values)  # type: ignore[no-any-return]


async def train_beside(policy: RankCalls, critic: RankCalls, batch: TrainBatch, known: Known) -> StepReport:
    """The optimiser steps of both, at the same time.

    Raises:
        PolicyError: as ``Trainer.train_on``; the critic's steps go on to their end.
        CriticNotFiniteError: as ``Critic.train_on``, once the policy has taken its steps; where it fails too, its error comes.
    """
    doing = f"training on rollout {batch.rollout_id}"
    steps = asyncio.create_task(policy.all(doing, "train_on", batch, known))
    try:
        report, metrics = await asyncio.gather(steps, critic.all(doing, "train_on", batch, known.values, known.kl))
    except CriticNotFiniteError:
        await steps
        raise
    return replace(report, metrics=report.metrics | metrics)  # type: ignore[no-any-return]


def part_for(checkpoint: Path) -> Path:
    """Where the critic writes its part of a checkpoint; removed by the next start if this process is killed."""
    return checkpoint.parent / f".{checkpoint.name}.critic.{os.getpid()}.part"


@contextmanager
def cleared(part: Path) -> Iterator[None]:
    """Nothing stands at ``part`` afterwards, whether or not a checkpoint took it up."""
    try:
        yield
    finally:
        shutil.rmtree(part, ignore_errors=True)
