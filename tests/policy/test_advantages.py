"""GRPO advantages against a plain reference, and their laws."""

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.policy.advantages import grpo_advantages

pytestmark = pytest.mark.unit

REWARD = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 0.1, -2.5]), st.floats(-1e3, 1e3, width=32))
GROUPS = st.lists(st.lists(REWARD, min_size=1, max_size=6), min_size=1, max_size=5)


def reference(group: list[float | None], divide_by_std: bool) -> list[float]:
    """Plain Python, float64."""
    scored = [reward for reward in group if reward is not None]
    if len(set(scored)) < 2:
        return [0.0] * len(group)
    centre = statistics.fmean(scored)
    scale = statistics.stdev(scored) + 1e-4 if divide_by_std else 1.0
    return [0.0 if reward is None else (reward - centre) / scale for reward in group]


def computed(groups: list[list[float | None]], divide_by_std: bool, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Ours, on the flat columns."""
    flat = [reward for group in groups for reward in group]
    rewards = torch.tensor([float("nan") if reward is None else reward for reward in flat], dtype=dtype)
    scored = torch.tensor([reward is not None for reward in flat])
    owner = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    return grpo_advantages(rewards, scored, owner, divide_by_std=divide_by_std)


@given(GROUPS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_equals_the_plain_formula(groups, divide_by_std):
    expected = [value for group in groups for value in reference(group, divide_by_std)]
    torch.testing.assert_close(
        computed(groups, divide_by_std), torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10
    )


@given(st.lists(st.lists(st.floats(-4, 4, width=16), min_size=1, max_size=6), min_size=1, max_size=4), st.booleans())
@settings(max_examples=50, deadline=None)
def test_float32_is_close_to_float64(groups, divide_by_std):
    exact = computed(groups, divide_by_std)
    torch.testing.assert_close(computed(groups, divide_by_std, torch.float32).double(), exact, rtol=1e-5, atol=1e-3)


@given(GROUPS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_group_sums_to_zero_and_ignores_the_others(groups, divide_by_std):
    whole = computed(groups, divide_by_std)
    alone = torch.cat([computed([group], divide_by_std) for group in groups])
    assert torch.equal(whole, alone)
    for part in whole.split([len(group) for group in groups]):
        assert abs(part.sum()) < 1e-9


@given(st.floats(-10, 10), st.integers(1, 9), st.booleans())
@settings(max_examples=60, deadline=None)
def test_equal_rewards_and_single_samples_are_exactly_zero(reward, size, divide_by_std):
    assert not computed([[reward] * size, [reward, None]], divide_by_std).any()


def test_the_deviation_is_the_unbiased_one():
    assert computed([[0.0, 1.0]], True).tolist() == pytest.approx([-0.5 / (0.5**0.5 + 1e-4), 0.5 / (0.5**0.5 + 1e-4)], rel=1e-12)


def test_no_samples_no_advantages():
    none = torch.zeros(0)
    assert grpo_advantages(none, none.bool(), none.long(), divide_by_std=True).numel() == 0
