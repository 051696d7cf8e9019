"""Publish the policy's weights: every engine acknowledges the next version, or the run stops with a named state.

export ─► join ─► pause ─► update ─► (check) ─► continue      one version at a time, each state with its own time-out
  │        │        │         │          │          │
policy     └────────┴──── engines ───────┴──────────┘         the version counts only after `continue`

Engines that share their devices with the policy are paused and released while it trains; then the states are
export ─► join ─► resume ─► update ─► (check) ─► resume ─► continue.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Protocol, TypeVar

from miles.clock import Clock
from miles.engines.client import EngineClient
from miles.engines.wire import PauseMode
from miles.errors import EngineError, WeightMismatchError
from miles.types import Metrics
from miles.weights.check import WeightCheck
from miles.weights.transport import Engines, OneEngine, Transport

T = TypeVar("T")


class PublishState(StrEnum):
    """Where a publication is; an error names it."""

    IDLE = "idle"
    EXPORT = "export"
    JOIN = "join"
    PAUSE = "pause"
    RELEASE = "release"
    RESUME = "resume"
    UPDATE = "update"
    CHECK = "check"
    CONTINUE = "continue"


class EngineAdmin(Engines, Protocol):
    """All engines of the run; each call returns when every engine has acknowledged.

    steering: held while weights change, so that no engine joins half-way.
    """

    steering: asyncio.Lock

    async def pause(self, mode: PauseMode) -> None:
        """Stop decoding."""
        ...

    async def continue_generation(self) -> None:
        """Decode again."""
        ...

    def reload_with(self, load: Callable[[int, EngineClient], Awaitable[None]]) -> None:
        """How an engine that comes back gets the published weights."""
        ...


class Turns(Protocol):
    """Engines that were paused and gave their memory to the policy while it trained."""

    async def resume_weights(self) -> None:
        """They can take weights again."""
        ...

    async def resume_cache(self) -> None:
        """They can decode again."""
        ...


class Publisher:
    """Publishes over one transport.

    mode: what a pause does to running requests.
    check: None where checksums are not compared. turns: None where engines have devices of their own.
    """

    def __init__(
        self, transport: Transport, engines: EngineAdmin, mode: PauseMode, timeout_seconds: float, clock: Clock,
        check: WeightCheck | None = None, turns: Turns | None = None,
    ) -> None:  # fmt: skip
        self.state = PublishState.IDLE
        self._transport, self._engines, self._mode = transport, engines, mode
        self._timeout_seconds, self._clock, self._check, self._turns = timeout_seconds, clock, check, turns
        self._began, self._num_bytes = 0.0, 0

    async def publish(self, version: int) -> Metrics:
        """Bring every engine to ``version``; how long it took, how long engines stood still, and the bytes each took.

        Raises:
            EngineError: a state failed or took longer than its time-out.
            WeightMismatchError: an engine holds something else than was published.
        """
        await self.stage(version)
        return await self.deliver(version)

    @property
    def delivers_alone(self) -> bool:
        """Whether ``deliver`` asks nothing of the policy, so that it may train meanwhile."""
        return not self._transport.needs_policy and self._check is None and self._turns is None

    async def stage(self, version: int) -> None:
        """The first half: the policy puts its weights down as ``version``; engines go on. Raises as ``publish``."""
        self._began = self._clock.now()
        self._num_bytes = await self._enter(PublishState.EXPORT, version, self._transport.stage(version))

    async def deliver(self, version: int) -> Metrics:
        """The second half: every engine takes what was staged. Returns and raises as ``publish``."""
        async with self._engines.steering:
            await self._enter(PublishState.JOIN, version, self._transport.join(self._engines))
            stopped = self._clock.now()
            if self._turns is None:
                await self._enter(PublishState.PAUSE, version, self._engines.pause(self._mode))
            else:
                await self._enter(PublishState.RESUME, version, self._turns.resume_weights())
            await self._enter(PublishState.UPDATE, version, self._update(version))
            if self._check is not None:
                await self._enter(PublishState.CHECK, version, self._check.compare(version, self._engines))
            if self._turns is not None:
                await self._enter(PublishState.RESUME, version, self._turns.resume_cache())
            await self._enter(PublishState.CONTINUE, version, self._engines.continue_generation())
            await self._transport.settle(version)
        self.state = PublishState.IDLE
        now = self._clock.now()
        times = {"perf/update_weights_time": now - self._began, "perf/engines_paused_time": now - stopped}
        return {**times, "perf/update_weights_bytes": float(self._num_bytes)}

    async def part(self) -> list[str]:
        """The run ends and its engines go on without it; what it could not take back, a sentence each."""
        return await self._transport.part(self._engines)

    async def _update(self, version: int) -> None:
        """Retracted requests hold no cache, so it can be flushed; those paused in place keep theirs."""
        await self._transport.update(version, self._engines, flushes=self._mode != "in_place")
        self._engines.reload_with(lambda number, client: self._reload(version, OneEngine(number, client)))

    async def _reload(self, version: int, engine: OneEngine) -> None:
        """An engine that comes back holds nothing of this run yet."""
        await self._transport.update(version, engine, flushes=True)
        if self._check is not None:
            await self._check.compare_again(version, engine)

    async def _enter(self, state: PublishState, version: int, work: Awaitable[T]) -> T:
        """Do the work of one state under the time-out."""
        self.state = state
        return await in_state(state, f"publishing weights version {version}", self._timeout_seconds, work)


async def in_state(state: PublishState, what: str, timeout_seconds: float, work: Awaitable[T]) -> T:
    """Do the work of one state under its time-out; ``what`` it belongs to.

    Raises:
        EngineError: it failed or took too long; names the state.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            return await work
    except TimeoutError as error:
        raise EngineError(
            f"{what}: `{state}` took longer than {timeout_seconds:g} s. See the engines' logs; "
            "--update-weights-timeout-seconds raises the limit."
        ) from error
    except WeightMismatchError:
        raise
    except EngineError as error:
        raise EngineError(f"{what}: `{state}` failed: {error}") from error
