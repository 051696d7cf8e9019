"""Publish the policy's weights: every engine acknowledges the next version, or the run stops with a named state.

export ─► pause ─► update ─► continue          one version at a time, each state with its own time-out
  │         │         │          │
policy    engines   engines    engines          the version counts only after `continue`
"""

import asyncio
import shutil
from collections.abc import Awaitable
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

from miles.clock import Clock
from miles.engines.wire import PauseMode
from miles.errors import EngineError
from miles.types import Metrics

T = TypeVar("T")


class PublishState(StrEnum):
    """Where a publication is; an error names it."""

    IDLE = "idle"
    EXPORT = "export"
    PAUSE = "pause"
    UPDATE = "update"
    CONTINUE = "continue"


class WeightExporter(Protocol):
    """The policy, as far as publishing needs it."""

    async def export_weights(self, folder: Path) -> None:
        """Write the weights as an HF safetensors folder."""
        ...


class EngineAdmin(Protocol):
    """All engines of the run; each call returns when every engine has acknowledged.

    steering: held while weights change, so that no engine joins half-way.
    """

    steering: asyncio.Lock

    async def pause(self, mode: PauseMode) -> None:
        """Stop decoding."""
        ...

    async def update_weights_from_disk(self, path: str, version: int, *, flushes: bool) -> None:
        """Load the weights in ``path`` under ``version``; ``flushes`` drops cached prefixes of the old ones."""
        ...

    async def continue_generation(self) -> None:
        """Decode again."""
        ...


class DiskPublisher:
    """Publishes through a folder that policy and engines can both read (shared memory on one host)."""

    def __init__(
        self, policy: WeightExporter, engines: EngineAdmin, folder: Path, mode: PauseMode, timeout_seconds: float, clock: Clock
    ) -> None:
        self.state = PublishState.IDLE
        self._policy, self._engines, self._folder = policy, engines, folder
        self._mode, self._timeout_seconds, self._clock = mode, timeout_seconds, clock

    async def publish(self, version: int) -> Metrics:
        """Bring every engine to ``version``; returns how long it took and how long engines stood still.

        Raises:
            EngineError: a state failed or took longer than its time-out.
        """
        begin = self._clock.now()
        path = self._folder / f"version-{version}"
        await self._enter(PublishState.EXPORT, version, self._policy.export_weights(path))
        async with self._engines.steering:
            stopped = self._clock.now()
            await self._enter(PublishState.PAUSE, version, self._engines.pause(self._mode))
            await self._enter(PublishState.UPDATE, version, self._update(path, version))
            await self._enter(PublishState.CONTINUE, version, self._engines.continue_generation())
            self._keep_only(path)
        self.state = PublishState.IDLE
        now = self._clock.now()
        return {"perf/update_weights_time": now - begin, "perf/engines_paused_time": now - stopped}

    def _keep_only(self, path: Path) -> None:
        """The newest weights stay for engines that come back; those before them go."""
        for older in self._folder.glob("version-*"):
            if older != path:
                shutil.rmtree(older)

    async def _update(self, path: Path, version: int) -> None:
        """Retracted requests hold no cache, so it can be flushed; those paused in place keep theirs."""
        await self._engines.update_weights_from_disk(str(path), version, flushes=self._mode != "in_place")

    async def _enter(self, state: PublishState, version: int, work: Awaitable[T]) -> T:
        """Do the work of one state under the time-out."""
        self.state = state
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await work
        except TimeoutError as error:
            raise EngineError(
                f"publishing weights version {version}: `{state}` took longer than {self._timeout_seconds:g} s. See the engines' "
                "logs; --update-weights-timeout-seconds raises the limit."
            ) from error
