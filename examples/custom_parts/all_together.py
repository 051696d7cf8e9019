"""A rollout function of your own in the older form: called for each rollout, returns its groups.

    miles train --preset reverse --rollout-api function --rollout-function-path all_together:rollout

What it returns goes into training; a prompt that it took and did not return waits for the next rollout.
"""

import asyncio

from miles.rollout.contracts import RolloutFnInput
from miles.types import Group


async def rollout(given: RolloutFnInput, rollout_id: int, weight_version: int) -> list[Group]:
    """One batch of groups, sampled all together."""
    prompts = [given.source.reserve(given.ledger) for _ in range(given.config.data.rollout_batch_size)]
    return list(await asyncio.gather(*(given.generate_group(prompt, weight_version) for prompt in prompts)))
