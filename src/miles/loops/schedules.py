"""The three schedules, side by side: the same verbs, and who waits for whom.

sync            engines  ═rollout 0═           ═rollout 1═           policy waits for rollout k,
                policy              ─step 0─▲              ─step 1─▲ engines wait for step k; staleness 0

one step off    engines  ═rollout 0═ ═rollout 1═ ▼═rollout 2═        rollout k+1 runs while step k trains;
                policy               ─step 0──   ▲─step 1──          publishing waits for rollout k+1; staleness ≤ 1

fully async     engines  ═══════════▼═════════▼═════════▼══════      nobody waits: a producer fills a buffer,
                policy      ─step 0─▲ ─step 1─▲ ─step 2─▲            weights are updated in flight; staleness ≤ the bound

▲ publish   ▼ engines take the new version
"""

import asyncio

from miles.config.derived import Schedule
from miles.loops.run import Run
from miles.types import Rollout


async def run_sync(run: Run) -> None:
    """Rollout, step, publish, in turn."""
    for rollout_id in run.remaining():
        rollout = await run.generate(rollout_id)
        await run.train(rollout)
        await run.publish_if_due()
        await run.finish_step()


async def run_one_step_off(run: Run) -> None:
    """Rollout k+1 is generated while the policy trains on rollout k."""
    upcoming: asyncio.Task[Rollout] | None = None
    try:
        for rollout_id in run.remaining():
            rollout = await (upcoming or run.generate(rollout_id))
            upcoming = begin(run, rollout_id + 1)
            await run.train(rollout)
            if upcoming is not None and run.stopping:
                upcoming.cancel()
            if upcoming is not None and run.cadence.publishes_after(run.rollouts_done):
                await asyncio.wait([upcoming])
            await run.publish_if_due()
            await run.finish_step()
    finally:
        if upcoming is not None:
            upcoming.cancel()
            await asyncio.gather(upcoming, return_exceptions=True)


def begin(run: Run, rollout_id: int) -> asyncio.Task[Rollout] | None:
    """Start generating ``rollout_id`` under the version published now; None after the last."""
    if rollout_id >= run.cadence.total:
        return None
    return asyncio.create_task(run.generate(rollout_id), name=f"rollout {rollout_id}")


async def run_fully_async(run: Run) -> None:
    """The producer never stops; ``generate`` takes a batch from its buffer, waiting only where the bound demands it.

    The policy goes on while engines take the weights that it staged.
    """
    try:
        for rollout_id in run.remaining():
            rollout = await run.generate(rollout_id)
            await run.train(rollout)
            await run.publish_if_due(in_background=True)
            await run.finish_step()
    finally:
        await run.publications.abandon()


LOOPS = {"sync": run_sync, "one_step_off": run_one_step_off, "fully_async": run_fully_async}


async def run_schedule(run: Run, schedule: Schedule) -> None:
    """A whole run: first evaluation, the loop, and at the end what is still due."""
    await run.hold_if_measured()
    if run.cadence.eval_before_train and run.rollouts_done == 0:
        await run.evaluate()
    await run.evaluate_if_due()
    await LOOPS[schedule](run)
    await run.end()
