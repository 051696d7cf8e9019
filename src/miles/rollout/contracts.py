"""What a rollout function is given and what is asked of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from miles.clock import Clock
from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.engines.wire import EngineApi
from miles.types import Group, Prompt, Rollout

if TYPE_CHECKING:
    from miles.rollout.ledger import Ledger
    from miles.rollout.prompts import PromptSource


class GroupGenerator(Protocol):
    """Samples and scores one group."""

    async def __call__(self, prompt: Prompt, version_admitted: int) -> Group:
        """The finished group.

        Raises:
            EngineError: an engine failed.
            TimeoutError: the group took longer than ``rollout_timeout_seconds``; its requests were aborted.
        """
        ...


@dataclass(frozen=True, slots=True)
class RolloutFnInput:
    """Everything a rollout function is built from.

    first_rollout_id: 0, or where a resumed run goes on.
    say: tells the user one line (no progress, refills, …).
    engines: for a rollout function of your own that asks them itself; a simulated run has none. While they have no room, whoever
        produces without end starts nothing new.
    """

    config: AnyConfig
    derived: Derived
    source: "PromptSource"
    ledger: "Ledger"
    generate_group: GroupGenerator
    clock: Clock
    first_rollout_id: int = 0
    weight_version: int = 0
    say: Callable[[str], None] = lambda line: None
    engines: EngineApi | None = None


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
