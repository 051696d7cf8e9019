"""Calls to the ranks of one model, each of them an actor: one awaitable for all, with one answer or one error."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.errors import MilesError, PolicyError
from miles.policy.rank_worker import RankWorker

T = TypeVar("T")
Seats = Sequence[dict[str, Any]]  # ``.options(**…)`` of each rank's actor
OWN_WORDS_SECONDS = 5.0
WATCH_SECONDS = 1.0
WRITING = "writing"  # Ray's name for the thread that finishes checkpoints


class RankCalls:
    """The ranks that train one model, rank 0 first; ``start`` has them meet.

    who: what errors call them, ``the policy``.
    """

    def __init__(self, actors: Sequence[Any], who: str) -> None:
        self.actors, self.who = list(actors), who
        self._started = [self.actors[0].start.remote()] if len(self.actors) == 1 else []

    async def start(self) -> tuple[str, ...]:
        """Return when every rank has its model; what rank 0 has to say of it, a sentence each.

        Raises:
            PolicyError: one cannot load it, or its process has ended.
        """
        if not self._started:
            address: str = (await self.answers("starting", [self.actors[0].listen.remote()]))[0]
            self._started = [actor.start.remote(address) for actor in self.actors]
        notes: tuple[str, ...] = (await self.answers("starting", self._started))[0]
        return notes

    async def all(self, doing: str, method: str, *arguments: Any) -> Any:
        """Call all ranks; rank 0's answer."""
        return (await self.answers(doing, [getattr(actor, method).remote(*arguments) for actor in self.actors]))[0]

    async def finish_save(self, *arguments: Any) -> None:
        """Wait in a thread of their own, beside other calls, until the checkpoint begun last is written."""
        calls = [actor.finish_save.options(concurrency_group=WRITING).remote(*arguments) for actor in self.actors]
        await self.answers("writing a checkpoint", calls)

    async def watch(self) -> None:
        """For as long as every rank's process lives, also while nobody calls it; a rank at work answers after that.

        Raises:
            PolicyError: one has ended.
        """
        while True:
            await self.answers("the run went on", [actor.alive.remote() for actor in self.actors])
            await asyncio.sleep(WATCH_SECONDS)

    async def answers(self, doing: str, calls: Sequence[Awaitable[T]]) -> list[T]:
        """The actors' answers in order; their own errors as they are, everything else as a ``PolicyError`` with its cause.

        When one rank fails, the others wait for it in vain or lose their connection to it: they get a moment to say what
        happened to them, and the error with the most to say is raised.

        Raises:
            MilesError: whatever a worker raised.
            PolicyError: a worker failed otherwise, or its process has ended.
        """
        answers = [asyncio.ensure_future(_answer(call)) for call in calls]
        await asyncio.wait(answers, return_when=asyncio.FIRST_EXCEPTION)
        if any(not answer.done() for answer in answers):
            await asyncio.wait(answers, timeout=OWN_WORDS_SECONDS)
        done = {rank: answer.exception() for rank, answer in enumerate(answers) if answer.done()}
        errors = {rank: error for rank, error in done.items() if error is not None}
        for answer in answers:
            answer.cancel()
        if errors:
            rank = min(errors, key=lambda rank: (_vagueness(errors[rank]), rank))
            raise _as_miles_error(doing, errors[rank], f"rank {rank} of {self.who}" if len(answers) > 1 else self.who)
        return [answer.result() for answer in answers]


def start_ranks(worker: type[RankWorker], who: str, config: AnyConfig, derived: Derived, seats: Seats) -> RankCalls:
    """Start one actor for each seat and return at once."""
    import ray

    remote = ray.remote(concurrency_groups={WRITING: 1}) if config.model.async_save else ray.remote
    actor_class = remote(worker)
    return RankCalls([actor_class.options(**seat).remote(config, derived, index) for index, seat in enumerate(seats)], who)


async def _answer(call: Awaitable[T]) -> T:
    """A coroutine around whatever Ray returns."""
    return await call


def _vagueness(error: BaseException) -> int:
    """0 for an error of our own, 1 for a process that ended, 2 for anything else, such as a lost connection."""
    from ray.exceptions import RayActorError

    return 0 if isinstance(getattr(error, "cause", None), MilesError) else 1 if isinstance(error, RayActorError) else 2


def _as_miles_error(doing: str, error: BaseException, who: str) -> BaseException:
    """The error that the caller sees, its cause attached."""
    from ray.exceptions import RayActorError, RayError, RayTaskError

    if isinstance(error, RayTaskError):
        cause = error.cause
        text = f"{who} failed while {doing}: {cause!r}. Its log in the run folder has the traceback."
        found: BaseException = cause if isinstance(cause, MilesError) else PolicyError(text)
    elif isinstance(error, RayActorError):
        first_line = str(error).splitlines()[0]
        found = PolicyError(f"{who}'s process ended while {doing}: {first_line} If memory ran out, lower --max-tokens-per-gpu.")
    elif isinstance(error, RayError):
        found = PolicyError(f"Ray failed while {doing} with {who}: {error}. See `ray status`.")
    else:
        return error
    found.__cause__ = error
    return found
