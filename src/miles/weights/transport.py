"""What a way of moving weights does, and what it is given.

    stage   the policy gets ready; engines go on           join    connections, where any are needed; engines go on
    update  engines take the weights, paused               settle  what the version before left behind goes
    part    engines that outlive the run are left as they were found

``update`` serves one engine as it serves all: that is how one that comes back gets the published weights.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from miles.engines.client import EngineClient

T = TypeVar("T")


class Engines(Protocol):
    """Those that shall take the weights."""

    @property
    def serving(self) -> Mapping[int, EngineClient]:
        """By number, in order."""
        ...

    async def on_all(self, call: Callable[[EngineClient], Awaitable[T]]) -> list[T]:
        """Ask all at once and wait for all; whoever fails is taken out, unless that is nobody's to repair."""
        ...


class OneEngine:
    """A single engine, which is not yet in the fleet; its failure is the caller's."""

    def __init__(self, number: int, client: EngineClient) -> None:
        self.serving = {number: client}

    async def on_all(self, call: Callable[[EngineClient], Awaitable[T]]) -> list[T]:
        """Ask it."""
        return [await call(client) for client in self.serving.values()]


class Transport(Protocol):
    """A way of moving weights.

    needs_policy: ``update`` asks the policy for them; otherwise they lie ready once they are staged.
    """

    @property
    def needs_policy(self) -> bool:
        """See the class."""
        ...

    async def stage(self, version: int) -> int:
        """Get ready; the bytes that each engine will take."""
        ...

    async def join(self, engines: Engines) -> None:
        """Connect the policy with engines that are not yet connected."""
        ...

    async def update(self, version: int, engines: Engines, *, flushes: bool) -> None:
        """Bring engines to ``version``; ``flushes`` drops cached prefixes of the old weights."""
        ...

    async def settle(self, version: int) -> None:
        """Every engine has ``version``: keep only what one that comes back will need."""
        ...

    async def part(self, engines: Engines) -> list[str]:
        """The run ends and the engines go on: nothing of it stays with them. What was not possible, a sentence each."""
        ...
