"""What a rollout function is given and what is asked of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from miles.clock import Clock
from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.engines.wire import EngineApi, Room
from miles.types import Group, Prompt, Rollout

if TYPE_CHECKING:
    from miles.rollout.ledger import Ledger


class Prompts(Protocol):
    """Where prompts come from, by their place in the order of issue: a file, or a data source of the user's."""

    def prompt(self, index: int) -> Prompt:
        """The prompt of a group that is alive, or of the next one."""
        ...

    def reserve(self, ledger: "Ledger") -> Prompt:
        """The prompt that is due next by the ledger, which now counts it as in flight."""
        ...

    def state(self, ledger: "Ledger") -> Any:
        """What a checkpoint must hold, JSON-able, beside the ledger's snapshot of the same moment."""
        ...

    def restore(self, state: Any) -> None:
        """Go on from what ``state`` returned."""
        ...


class GroupGenerator(Protocol):
    """Samples and scores one group."""

    async def __call__(self, prompt: Prompt, version_admitted: int, begun: Group | None = None) -> Group:
        """The finished group; ``begun`` is what was sampled of it before and is gone on with (``--partial-rollout`` alone).

        Raises:
            EngineError: an engine failed.
            TimeoutError: the group took longer than ``rollout_timeout_seconds``; its requests were aborted.
        """
        ...


async def nothing_in_flight() -> None:
    """For generators that cannot be interrupted."""


@dataclass(frozen=True, slots=True)
class RolloutFnInput:
    """Everything a rollout function is built from.

    first_rollout_id: 0, or where a resumed run goes on.
    say: tells the user one line (no progress, refills, …).
    engines: for a rollout function of your own that asks them itself; a simulated run has none.
    room: while there is none, whoever produces without end starts nothing new; None where engines are never full.
    interrupt: asks the engines to end what ``generate_group`` has in flight; its calls then return with what was sampled.
    """

    config: AnyConfig
    derived: Derived
    source: Prompts
    ledger: "Ledger"
    generate_group: GroupGenerator
    clock: Clock
    first_rollout_id: int = 0
    weight_version: int = 0
    say: Callable[[str], None] = lambda line: None
    engines: EngineApi | None = None
    room: Room | None = None
    interrupt: Callable[[], Awaitable[None]] = nothing_in_flight


class RolloutFn(Protocol):
    """Built once per run; called once per training step.

    Calls for rollout k, k+1, … come in order, never two at a time. After a resume ``given.ledger.finished()`` are groups
    sampled before; a class with ``takes_finished_groups = True`` uses them first, for any other they are sampled again.
    """

    async def __call__(self, rollout_id: int, weight_version: int) -> Rollout:
        """The groups that training step ``rollout_id`` consumes, in index order; ``weight_version`` is the policy's."""
        ...

    def published(self, version: int) -> None:
        """Every engine has acknowledged weights ``version``."""
        ...

    async def pause(self) -> None:
        """Start nothing new until ``resume`` (evaluation uses the engines); running work goes on."""
        ...

    def resume(self) -> None:
        """Go on after ``pause``."""
        ...

    async def close(self) -> None:
        """End every task this function started; groups in flight go back to waiting in the ledger."""
        ...
