"""Rewards for runs that must not get on."""

import asyncio

from miles.types import Prompt, Sample


async def never(sample: Sample, prompt: Prompt) -> float:
    """Waits for ever."""
    await asyncio.Event().wait()
    return 0.0
