"""Pacing: which groups may start and when a batch may be taken, so that no group is ever too old and none is discarded.

    B  groups one step consumes (rollout_batch_size)          k  steps taken so far (rollouts handed to the policy)
    U  steps from one publish to the next                     v  newest version that every engine has acknowledged
    S  largest staleness in versions (max_weight_staleness)   N  steps of the whole run

A group counts from version a, the version published when it was admitted; the policy may train on it while its own
version is at most a + S. With ``left(a)`` = steps not yet taken that start at a policy version ≤ a + S:

    admit one more group   while  alive < B · left(v)                        (and the capacity and the concurrency allow it)
    take a batch           if for every version a:  groups of version ≤ a left behind  ≤  B · (left(a) − 1)

A batch is the B finished groups of the oldest versions, then in order of completion. By the first rule the groups alive
fit into the steps that may still use them; the second keeps it so: a batch of younger groups is not taken while it would
push older ones past their last step. Then the policy waits, for groups that are in flight and will finish.

Everything here is a pure function of counts, so a step costs the same whatever the number of groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

VersionCounts = Mapping[int, int]  # version at admission → groups


@dataclass(frozen=True, slots=True)
class PacingRule:
    """What stays the same during a run.

    batch_size: B, in groups.
    update_interval: U, in steps; the policy publishes after step i when (i + 1) is a multiple of it.
    max_staleness: S, in versions.
    num_steps: N.
    capacity_groups: groups alive at most; None is what the bound admits.
    concurrent_groups: groups in flight at most; None is what the bound admits.
    """

    batch_size: int
    update_interval: int
    max_staleness: int
    num_steps: int
    capacity_groups: int | None = None
    concurrent_groups: int | None = None


@dataclass(frozen=True, slots=True)
class PolicyClock:
    """Where the policy is.

    steps_taken: k; the next step is number k.
    versions_ahead: version of the policy minus the one the schedule gives it, ⌊k / U⌋: not 0 after a resume that counts
        versions anew or a publish off schedule.
    """

    steps_taken: int
    versions_ahead: int = 0

    def after_take(self) -> "PolicyClock":
        """One more step is taken."""
        return replace(self, steps_taken=self.steps_taken + 1)


def at_step(rule: PacingRule, step: int, policy_version: int) -> PolicyClock:
    """The clock when the policy, at ``policy_version``, asks for the batch of ``step``."""
    return PolicyClock(step, policy_version - step // rule.update_interval)


def after_publish(rule: PacingRule, clock: PolicyClock, version: int) -> PolicyClock:
    """The clock once ``version`` is published: the next step starts at that version or a later one."""
    ahead = version - clock.steps_taken // rule.update_interval
    return replace(clock, versions_ahead=max(clock.versions_ahead, ahead))


def steps_left(rule: PacingRule, clock: PolicyClock, version: int) -> int:
    """left(a): steps not yet taken that start at a policy version ≤ a + S.

    Step i starts at version ⌊i / U⌋ + ahead, so they are the steps k ≤ i < (a + S + 1 − ahead) · U, and i < N.
    """
    end = (version + rule.max_staleness + 1 - clock.versions_ahead) * rule.update_interval
    return max(0, min(end, rule.num_steps) - clock.steps_taken)


def may_admit(rule: PacingRule, clock: PolicyClock, published: int, in_flight: int, finished: int) -> bool:
    """Whether one more group may start under version ``published``."""
    alive = in_flight + finished
    if rule.capacity_groups is not None and alive >= rule.capacity_groups:
        return False
    if rule.concurrent_groups is not None and in_flight >= rule.concurrent_groups:
        return False
    return alive < rule.batch_size * steps_left(rule, clock, published)


def batch_counts(rule: PacingRule, finished: VersionCounts) -> dict[int, int]:
    """How many finished groups of each version the next batch holds: oldest version first; fewer than B if too few."""
    missing = rule.batch_size
    counts: dict[int, int] = {}
    for version in sorted(finished):
        counts[version] = min(missing, finished[version])
        missing -= counts[version]
    return {version: count for version, count in counts.items() if count}


def may_take(rule: PacingRule, clock: PolicyClock, in_flight: VersionCounts, finished: VersionCounts) -> bool:
    """Whether the next batch exists and leaves nothing behind that would come too late."""
    if sum(finished.values()) < rule.batch_size or clock.steps_taken >= rule.num_steps:
        return False
    batch = batch_counts(rule, finished)
    behind = 0
    for version in sorted(in_flight.keys() | finished.keys()):
        behind += in_flight.get(version, 0) + finished.get(version, 0) - batch.get(version, 0)
        if behind > rule.batch_size * max(0, steps_left(rule, clock, version) - 1):
            return False
    return True


def overdue(rule: PacingRule, clock: PolicyClock, in_flight: VersionCounts, finished: VersionCounts) -> tuple[int, int]:
    """Groups that must start again, oldest first, since the steps that may use them no longer hold them all.

    On schedule always (0, 0). Within one version those in flight go first: less work is lost.

    Returns:
        Number of groups in flight and number of finished groups.
    """
    versions = sorted(in_flight.keys() | finished.keys())
    alive = excess = 0
    for version in versions:
        alive += in_flight.get(version, 0) + finished.get(version, 0)
        excess = max(excess, alive - rule.batch_size * steps_left(rule, clock, version))
    flying = done = 0
    for version in versions:
        from_flight = min(excess - flying - done, in_flight.get(version, 0))
        flying += from_flight
        done += min(excess - flying - done, finished.get(version, 0))
    return flying, done
