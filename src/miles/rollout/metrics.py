"""What is measured on the groups of one rollout, in index order, so that the same batch gives the same bits."""

from collections.abc import Mapping, Sequence

from miles.rollout.filters import has_reward_spread
from miles.rollout.histograms import staleness_histogram
from miles.rollout.ledger import DropReason
from miles.types import Group, Metrics, Sample, SampleStatus, mean, staleness


def batch_metrics(groups: Sequence[Group]) -> Metrics:
    """Rewards, lengths and endings of a batch.

    ``rollout/raw_reward`` is the mean over samples that got a reward; ``rollout/num_tokens`` counts response tokens;
    ``rollout/zero_std/share`` is the share of groups whose rewards are all equal, so that no sample has an advantage;
    ``rollout/spans_versions_share`` is the share of samples whose tokens come from more than one weight version.
    """
    samples = [sample for group in groups for sample in group.samples]
    lengths = [float(len(sample.response_ids)) for sample in samples]
    return {
        "rollout/raw_reward": mean([sample.reward for sample in samples if sample.reward is not None]),
        "rollout/response_len/mean": mean(lengths),
        "rollout/response_len/max": max(lengths, default=0.0),
        "rollout/response_len/min": min(lengths, default=0.0),
        "rollout/num_tokens": sum(lengths),
        "rollout/truncated_ratio": mean([float(sample.status is SampleStatus.TRUNCATED) for sample in samples]),
        "rollout/reward_failed": float(sum(sample.status is SampleStatus.FAILED for sample in samples)),
        "rollout/zero_std/share": mean([float(not has_reward_spread(group)) for group in groups]),
        "rollout/spans_versions_share": mean([float(spans_versions(sample)) for sample in samples]),
    }


def spans_versions(sample: Sample) -> bool:
    """Whether the tokens come from more than one weight version."""
    return len({span.version for span in sample.versions}) > 1


def dropped_metrics(before: Mapping[DropReason, int], now: Mapping[DropReason, int]) -> Metrics:
    """``rollout/dropped/<reason>``: groups dropped since the rollout before."""
    return {f"rollout/dropped/{reason}": float(now[reason] - before[reason]) for reason in DropReason}


def fully_async_metrics(groups: Sequence[Group], policy_version: int, left_behind: Mapping[int, int], in_flight: int) -> Metrics:
    """What fully async adds, at the moment the policy takes the batch.

    left_behind: finished groups left in the buffer, by version; in_flight: groups at the engines. Staleness is in versions,
    on the policy's clock: ``avg_staleness``, ``max_staleness`` and ``staleness/<lag>`` of the groups consumed,
    ``waiting_staleness/<lag>`` of those left in the buffer, counted from their admission.
    """
    lags = [staleness(policy_version, group) for group in groups]
    waiting = {policy_version - version: number for version, number in left_behind.items() if number}
    return {
        "rollout/fully_async/queue_size": float(sum(waiting.values())),
        "rollout/fully_async/in_flight": float(in_flight),
        "rollout/fully_async/avg_staleness": mean([float(lag) for lag in lags]),
        "rollout/fully_async/max_staleness": float(max(lags, default=0)),
        **staleness_histogram("rollout/fully_async/staleness", lags),
        **{f"rollout/fully_async/waiting_staleness/{lag}": float(number) for lag, number in sorted(waiting.items())},
    }
