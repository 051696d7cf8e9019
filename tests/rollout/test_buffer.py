"""The buffer against sorting everything, the filters, and what is measured on a batch."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.errors import RolloutError
from miles.rollout.buffer import PacedBuffer
from miles.rollout.filters import has_reward_spread, keeps, mask_samples
from miles.rollout.ledger import DropReason
from miles.rollout.metrics import batch_metrics, dropped_metrics, fully_async_metrics
from miles.types import Group, SampleStatus, VersionSpan

from .simulated import group

pytestmark = pytest.mark.unit


@given(st.lists(st.one_of(st.integers(0, 4), st.just("take")), max_size=60), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_oldest_version_first_then_completion_handed_out_by_index(events: list[Any], size: int) -> None:
    buffer, model = PacedBuffer(), []
    for number, event in enumerate(events):
        if event == "take":
            wanted, model = sorted(model)[:size], sorted(model)[size:]
            if len(wanted) < size:
                with pytest.raises(RolloutError, match=f"the buffer holds {len(wanted)} groups, not {size}"):
                    buffer.take(size)
                model = wanted + model
            else:
                assert [group.index for group in buffer.take(size)] == sorted(index for _, _, index in wanted)
        else:
            index = (number * 7919) % 10007
            buffer.put(group(index, event))
            model.append((event, number, index))
        assert [group.index for group in buffer.groups()] == [index for _, _, index in sorted(model)]
        assert dict(buffer.counts_by_version()) == Counter(version for version, _, _ in model)


def test_reward_spread() -> None:
    assert has_reward_spread(group(rewards=(0.0, 1.0)))
    assert not has_reward_spread(group(rewards=(1.0, 1.0)))
    assert not has_reward_spread(group(rewards=(1.0, None)))


def test_a_dynamic_filter_says_true_or_false() -> None:
    assert keeps(lambda _: True, group()) is True
    with pytest.raises(RolloutError, match="returned None for group 4. Return True or False"):
        keeps(lambda _: None, group(4))  # type: ignore[arg-type,return-value]
    with pytest.raises(RolloutError, match=r"failed on group 0: ZeroDivisionError.*--dynamic-sampling-filter-path"):
        keeps(lambda _: 1 / 0 > 0, group())


@pytest.mark.parametrize("flags", [None, 3, [[True, True]], [[True], [True]], [[True, 1], [True, True]], [[True, True]] * 3])
def test_a_sample_filter_says_true_or_false_for_every_sample(flags: Any) -> None:
    with pytest.raises(RolloutError, match="--rollout-sample-filter-path"):
        mask_samples(lambda _: flags, [group(0), group(1)])


def test_a_sample_filter_changes_the_loss_mask_alone() -> None:
    def second_only(groups: Sequence[Group]) -> list[list[bool]]:
        return [[False, True] for _ in groups]

    (masked,) = mask_samples(second_only, [group(3)])
    assert [sample.loss_mask for sample in masked.samples] == [(0, 0), (1, 1)]
    assert [sample.reward for sample in masked.samples] == [0.0, 1.0]


def test_what_is_measured() -> None:
    long = group(0, rewards=(1.0, 1.0), response_ids=(1, 2, 3, 4), status=SampleStatus.TRUNCATED)
    failed = group(1, rewards=(0.5, None), status=SampleStatus.FAILED)
    spanning = group(2, rewards=(0.0, 1.0))
    object.__setattr__(spanning.samples[0], "versions", (VersionSpan(1, 0, 1), VersionSpan(2, 1, 2)))
    assert batch_metrics([long, failed, spanning]) == {
        "rollout/raw_reward": pytest.approx(3.5 / 5),
        "rollout/response_len/mean": pytest.approx(16 / 6),
        "rollout/response_len/max": 4,
        "rollout/response_len/min": 2,
        "rollout/num_tokens": 16,
        "rollout/truncated_ratio": pytest.approx(1 / 3),
        "rollout/reward_failed": 2,
        "rollout/zero_std/share": pytest.approx(2 / 3),
        "rollout/spans_versions_share": pytest.approx(1 / 6),
    }


def test_what_fully_async_adds() -> None:
    assert fully_async_metrics([group(0, 3), group(1, 5)], 6, {5: 4, 6: 3, 2: 0}, 8) == {
        "rollout/fully_async/queue_size": 7,
        "rollout/fully_async/in_flight": 8,
        "rollout/fully_async/avg_staleness": 2,
        "rollout/fully_async/max_staleness": 3,
        "rollout/fully_async/staleness/1": 1,
        "rollout/fully_async/staleness/3": 1,
        "rollout/fully_async/waiting_staleness/0": 3,
        "rollout/fully_async/waiting_staleness/1": 4,
    }
    none = dict.fromkeys(DropReason, 0)
    assert dropped_metrics(none, none | {DropReason.ABORTED: 2})["rollout/dropped/aborted"] == 2
