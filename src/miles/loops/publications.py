"""Publications of a run, one at a time: the loop waits for one, or goes on once the policy's weights are staged.

stage ─────────► deliver ─────────► published
policy           engines            rollout function
waits always     waits, or trains
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from miles.loops.parts import Parts
from miles.loops.patience import Patience
from miles.tracking.trace import Spans
from miles.types import Metrics

T = TypeVar("T")


class Publications:
    """Whether one is under way. metrics: of those that ended since somebody took them."""

    def __init__(self, parts: Parts, trace: Spans, patience: Patience) -> None:
        self._parts, self._trace, self._patience = parts, trace, patience
        self._under_way: asyncio.Task[None] | None = None
        self._metrics: Metrics = {}

    async def publish(self, version: int, *, in_background: bool) -> None:
        """Bring the policy's weights to the engines as ``version``, after the publication before.

        in_background: return once they are staged, where the publisher can do the rest without the policy.

        Raises:
            EngineError: as the publisher, for this version or the one before.
        """
        await self.settle()
        with self._trace.span("weights", f"stage {version}"):
            async with self._patience.while_waiting(f"the policy to stage weights version {version}"):
                await self._parts.publisher.stage(version)
        if in_background and self._parts.publisher.delivers_alone:
            self._under_way = asyncio.create_task(self._deliver(version), name=f"publication of version {version}")
        else:
            await self._deliver(version)

    async def _deliver(self, version: int) -> None:
        with self._trace.span("weights", f"publish {version}"):
            async with self._patience.while_waiting(f"the engines to take weights version {version}"):
                self._metrics |= await self._parts.publisher.deliver(version)
        self._parts.rollout.published(version)

    async def settle(self) -> None:
        """Return once every engine has the version that was staged last; a publication that failed is raised."""
        if self._under_way is not None:
            publication, self._under_way = self._under_way, None
            await publication

    async def abandon(self) -> None:
        """The loop is left: nobody waits for a publication that is under way."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    async def unless_one_fails(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``; a publication beside it that fails is raised at once, since work may wait for it."""
        task = asyncio.ensure_future(work)
        try:
            if self._under_way is not None:
                await asyncio.wait([task, self._under_way], return_when=asyncio.FIRST_COMPLETED)
                if self._under_way.done():
                    self._under_way.result()
            return await task
        finally:
            task.cancel()

    def take_metrics(self) -> Metrics:
        """Times and bytes of the publications that ended since the last call."""
        metrics, self._metrics = self._metrics, {}
        return metrics
