"""What a loop is given: each part behind the few calls the loop makes, so that tests and simulation can stand in."""

from dataclasses import dataclass
from typing import Protocol

from miles.loops.beside import Beside
from miles.rollout.contracts import RolloutFn
from miles.types import Metrics, Rollout, StepReport


class Policy(Protocol):
    """The trainer ranks."""

    async def train_on(self, rollout: Rollout, policy_version: int) -> StepReport:
        """Take the optimiser steps of one rollout."""
        ...


class Publisher(Protocol):
    """Brings every engine to a new version, in two halves."""

    @property
    def delivers_alone(self) -> bool:
        """Whether the policy may train while ``deliver`` runs."""
        ...

    async def stage(self, version: int) -> None:
        """The policy puts down its weights."""
        ...

    async def deliver(self, version: int) -> Metrics:
        """Return when every engine has acknowledged ``version``."""
        ...


class LedgerView(Protocol):
    """The ledger, as far as a loop needs it."""

    def mark_trained(self, rollout: Rollout) -> None:
        """The policy took its steps on these groups."""
        ...

    def counts(self) -> Metrics:
        """Groups by state, as metrics."""
        ...


class Evaluator(Protocol):
    """Measures the engines' weights on held-out prompts, while production pauses."""

    async def __call__(self, weight_version: int) -> Metrics:
        """``eval/<name>`` and its companions."""
        ...


class Saver(Protocol):
    """Writes checkpoints."""

    async def save(self, rollouts_done: int, weight_version: int, *, weights_published: bool) -> None:
        """Everything a resume needs; ``weights_published``: the policy's weights are those of ``weight_version``."""
        ...

    async def settle(self) -> None:
        """Return when nothing is being written any more; raises what went wrong."""
        ...


class Journal(Protocol):
    """Where a run's rows go: the file and whoever watches."""

    def write(self, row: Metrics, rollouts_done: int) -> None:
        """One line of metrics.jsonl."""
        ...


@dataclass(frozen=True, slots=True)
class Cadence:
    """When things happen, in rollouts.

    total: rollouts of the whole run.
    update_weights_interval: publish every so many; the last rollout always publishes.
    eval_interval, save_interval: None means only at the ends.
    """

    total: int
    update_weights_interval: int = 1
    eval_interval: int | None = None
    save_interval: int | None = None
    eval_before_train: bool = True

    def publishes_after(self, done: int) -> bool:
        """Whether weights are published once ``done`` rollouts are trained."""
        return done % self.update_weights_interval == 0 or done == self.total

    def evaluates_after(self, done: int) -> bool:
        """Whether an evaluation follows; the last rollout always has one."""
        return done == self.total or (self.eval_interval is not None and done % self.eval_interval == 0)

    def measures_version_of(self, done: int) -> bool:
        """Whether an evaluation asks for the version that was published once ``done`` rollouts were trained."""
        until = next((later for later in range(done + 1, self.total + 1) if self.publishes_after(later)), self.total + 1)
        return any(self.evaluates_after(at) or (at == 0 and self.eval_before_train) for at in range(done, until))

    def saves_after(self, done: int) -> bool:
        """Whether a checkpoint follows; the last rollout always has one."""
        return done == self.total or (self.save_interval is not None and done % self.save_interval == 0)


@dataclass(slots=True)
class StopFlag:
    """Set by the first Ctrl-C: the loop ends after the step it is in."""

    requested: bool = False


@dataclass(frozen=True, slots=True)
class Parts:
    """All of them; evaluations are made by ``evaluator``, by ``beside``, or not at all."""

    rollout: RolloutFn
    ledger: LedgerView
    policy: Policy
    publisher: Publisher
    evaluator: Evaluator | None
    saver: Saver
    journal: Journal
    beside: Beside | None = None
