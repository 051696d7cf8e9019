"""Three ways to hold the staleness bound (``--staleness-control``): who waits, and what is given up instead.

    control   admits while                    the policy waits for           gives up
    pace      alive < B · left(v)             stragglers that would be late  nothing
    mask      alive < B · left(v)             B finished groups              the loss of tokens that are too old
    filter    the buffer has room             B finished, fresh groups       groups that are too old

``pacing`` has the rule and its letters; each control here says which parts of it hold.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from miles.rollout import pacing
from miles.rollout.masking import without_old_tokens
from miles.rollout.pacing import PacingRule, PolicyClock, VersionCounts
from miles.types import Group, staleness

Mask = Callable[[Group], Group]


class StalenessControl(Protocol):
    """What the producer and the policy's taking of batches ask."""

    def may_admit(self, clock: PolicyClock, published: int, in_flight: int, finished: int) -> bool:
        """Whether one more group may start under version ``published``."""
        ...

    def may_take(self, clock: PolicyClock, in_flight: VersionCounts, finished: VersionCounts) -> bool:
        """Whether the policy may take the B oldest finished groups now."""
        ...

    def overdue(self, clock: PolicyClock, in_flight: VersionCounts, finished: VersionCounts) -> tuple[int, int]:
        """How many groups in flight and finished, oldest first, must start again."""
        ...

    def is_too_old(self, group: Group, policy_version: int) -> bool:
        """Whether a finished group may not be trained on any more."""
        ...

    def mask_for(self, policy_version: int) -> Mask | None:
        """What takes tokens out of the loss when a batch is consumed; None where nothing does."""
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """Exact: nothing is discarded, nothing is masked, the policy waits where the bound demands it."""

    rule: PacingRule

    def may_admit(self, clock: PolicyClock, published: int, in_flight: int, finished: int) -> bool:
        """As ``pacing.may_admit``."""
        return pacing.may_admit(self.rule, clock, published, in_flight, finished)

    def may_take(self, clock: PolicyClock, in_flight: VersionCounts, finished: VersionCounts) -> bool:
        """As ``pacing.may_take``."""
        return pacing.may_take(self.rule, clock, in_flight, finished)

    def overdue(self, clock: PolicyClock, in_flight: VersionCounts, finished: VersionCounts) -> tuple[int, int]:
        """As ``pacing.overdue``: (0, 0) unless versions came off schedule."""
        return pacing.overdue(self.rule, clock, in_flight, finished)

    def is_too_old(self, group: Group, policy_version: int) -> bool:
        """Never: pacing has seen to it."""
        return False

    def mask_for(self, policy_version: int) -> Mask | None:
        """Nothing is masked."""
        return None


@dataclass(frozen=True, slots=True)
class TokenMask:
    """The admission of pacing, but nobody waits for a straggler: its tokens beyond the bound get no loss."""

    rule: PacingRule

    def may_admit(self, clock: PolicyClock, published: int, in_flight: int, finished: int) -> bool:
        """As ``pacing.may_admit``; a straggler counts as alive until it is consumed, so its slot is not given twice."""
        return pacing.may_admit(self.rule, clock, published, in_flight, finished)

    def may_take(self, clock: PolicyClock, in_flight: VersionCounts, finished: VersionCounts) -> bool:
        """Any B finished groups make a batch."""
        return is_batch_there(self.rule, clock, finished)

    def overdue(self, clock: PolicyClock, in_flight: VersionCounts, finished: VersionCounts) -> tuple[int, int]:
        """No group comes too late, only tokens do."""
        return 0, 0

    def is_too_old(self, group: Group, policy_version: int) -> bool:
        """No group is."""
        return False

    def mask_for(self, policy_version: int) -> Mask | None:
        """Loss mask 0 for tokens older than the bound."""
        oldest = policy_version - self.rule.max_staleness
        return lambda group: without_old_tokens(group, oldest)


@dataclass(frozen=True, slots=True)
class StaleFilter:
    """Generate as far as the buffer allows, look at a group's age when it is taken, give the old ones up."""

    rule: PacingRule

    def may_admit(self, clock: PolicyClock, published: int, in_flight: int, finished: int) -> bool:
        """The capacity and what the run still needs limit admission, the bound does not."""
        rule, alive = self.rule, in_flight + finished
        flies = rule.concurrent_groups is None or in_flight < rule.concurrent_groups
        capacity = rule.capacity_groups or rule.batch_size * (rule.max_staleness + 1) * rule.update_interval
        return flies and alive < min(capacity, rule.batch_size * (rule.num_steps - clock.steps_taken))

    def may_take(self, clock: PolicyClock, in_flight: VersionCounts, finished: VersionCounts) -> bool:
        """B finished groups may be looked at."""
        return is_batch_there(self.rule, clock, finished)

    def overdue(self, clock: PolicyClock, in_flight: VersionCounts, finished: VersionCounts) -> tuple[int, int]:
        """Age is looked at when a group is taken, not before."""
        return 0, 0

    def is_too_old(self, group: Group, policy_version: int) -> bool:
        """Staleness above the bound."""
        return staleness(policy_version, group) > self.rule.max_staleness

    def mask_for(self, policy_version: int) -> Mask | None:
        """Nothing is masked."""
        return None


def is_batch_there(rule: PacingRule, clock: PolicyClock, finished: VersionCounts) -> bool:
    """Whether B groups are finished and a step is left for them."""
    return sum(finished.values()) >= rule.batch_size and clock.steps_taken < rule.num_steps


def control_for(name: Literal["pace", "mask", "filter"], rule: PacingRule) -> StalenessControl:
    """The control that an option's value names."""
    controls: dict[str, Callable[[PacingRule], StalenessControl]] = {"pace": Pace, "mask": TokenMask, "filter": StaleFilter}
    return controls[name](rule)
