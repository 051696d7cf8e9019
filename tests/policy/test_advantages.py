"""GRPO advantages against a plain reference, and their laws."""

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.policy.advantages import grpo_advantages, overlong_penalties, returns_of, rloo_advantages, whitened
from miles.policy.estimate import AdvantageSpec, token_advantages
from tests.policy.builders import batch_of, config, random_rollout

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


@given(GROUPS)
@settings(max_examples=60, deadline=None)
def test_rloo_compares_with_the_mean_of_the_others(groups):
    flat = [reward for group in groups for reward in group]
    expected = []
    for group in groups:
        scored = [r for r in group if r is not None]
        for reward in group:
            others = list(scored)
            if reward is not None:
                others.remove(reward)
            expected.append(0.0 if reward is None or not others else reward - statistics.fmean(others))
    made = rloo_advantages(
        torch.tensor([0.0 if r is None else r for r in flat], dtype=torch.float64),
        torch.tensor([r is not None for r in flat]),
        torch.tensor([number for number, group in enumerate(groups) for _ in group]),
    )
    torch.testing.assert_close(made, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-9)


@given(st.lists(st.tuples(st.floats(-2, 2), st.lists(st.floats(-1, 1), max_size=5)), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_returns_are_what_follows_a_token(samples):
    offsets = torch.tensor([0, *[len(tokens) for _, tokens in samples]]).cumsum(0)
    flat = torch.tensor([value for _, tokens in samples for value in tokens], dtype=torch.float64)
    made = returns_of(torch.tensor([reward for reward, _ in samples], dtype=torch.float64), flat, offsets)
    expected = [reward + sum(tokens[place:]) for reward, tokens in samples for place in range(len(tokens))]
    assert made.tolist() == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.tuples(st.floats(-3, 3), st.booleans()), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_whitened_values_have_mean_0_and_deviation_1(pairs):
    values, counted = torch.tensor([v for v, _ in pairs], dtype=torch.float64), torch.tensor([c for _, c in pairs])
    made, chosen = whitened(values, counted), [v for v, c in pairs if c]
    assert not made[~counted].any()
    if len(set(chosen)) < 2:
        assert not made.any()
        return
    centre, scale = statistics.fmean(chosen), statistics.pstdev(chosen) + 1e-8
    assert made[counted].tolist() == pytest.approx([(v - centre) / scale for v in chosen], rel=1e-6, abs=1e-6)


@given(st.lists(st.integers(0, 40), min_size=1), st.integers(1, 20), st.floats(0.1, 3))
@settings(max_examples=60, deadline=None)
def test_the_overlong_penalty_is_the_papers(lengths, buffer, factor):
    def paper(length):
        if length <= 30 - buffer:
            return 0.0
        return factor * max(((30 - buffer) - length) / buffer, -1.0)

    made = overlong_penalties(torch.tensor(lengths), 30, buffer, factor)
    assert made.tolist() == pytest.approx([paper(length) for length in lengths], rel=1e-5, abs=1e-6)


def spec_of(**options):
    return AdvantageSpec.from_config(config(**options))


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo", "gspo", "cispo"])
def test_comparing_estimators_take_the_kl_of_an_answer_off_its_reward(estimator):
    made = random_rollout(3, num_groups=2)
    batch = batch_of(made)
    kl = torch.rand(len(batch.trained), dtype=torch.float64)
    values = token_advantages(batch, spec_of(advantage_estimator=estimator, kl_coef=0.1), kl)
    start = 0
    shaped = []
    for one in made.samples:
        end = start + len(one.response_ids)
        penalty = sum(float(k) * m for k, m in zip(kl[start:end], one.loss_mask, strict=True))
        shaped.append(None if one.reward is None else one.reward - 0.1 * penalty)
        start = end
    expected = []
    for number in range(2):
        group = shaped[number * 4 : number * 4 + 4]
        if estimator == "rloo":
            known = [r for r in group if r is not None]
            scale = len(known) / max(len(known) - 1, 1)
            expected += [value * scale for value in reference(group, False)]
        else:
            expected += reference(group, estimator != "dr_grpo")
    tokens = [value for value, one in zip(expected, made.samples, strict=True) for _ in one.response_ids]
    assert values.tolist() == pytest.approx(tokens, rel=1e-10, abs=1e-10)


def test_reinforce_plus_plus_whitens_the_returns_of_trained_tokens():
    made = random_rollout(4, num_groups=2)
    batch = batch_of(made)
    kl = torch.rand(len(batch.trained), dtype=torch.float64)
    values = token_advantages(batch, spec_of(advantage_estimator="reinforce_plus_plus", kl_coef=0.2), kl)
    returns, counted, start = [], [], 0
    for one in made.samples:
        for place in range(len(one.response_ids)):
            rest = sum(float(kl[start + later]) * one.loss_mask[later] for later in range(place, len(one.response_ids)))
            returns.append((one.reward or 0.0) - 0.2 * rest)
            counted.append(bool(one.loss_mask[place]) and one.reward is not None)
        start += len(one.response_ids)
    chosen = [value for value, known in zip(returns, counted, strict=True) if known]
    centre, scale = statistics.fmean(chosen), statistics.pstdev(chosen) + 1e-8
    expected = [(value - centre) / scale if known else 0.0 for value, known in zip(returns, counted, strict=True)]
    assert values.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_baseline_form_takes_the_groups_mean_first():
    batch = batch_of(random_rollout(5))
    plain = token_advantages(batch, spec_of(advantage_estimator="dr_grpo"), None)
    known = torch.tensor(batch.scored).repeat_interleave(torch.tensor(batch.response_offsets).diff())
    made = token_advantages(batch, spec_of(advantage_estimator="reinforce_plus_plus_baseline"), None)
    torch.testing.assert_close(made, whitened(plain, torch.tensor(batch.trained) & known))
    normal = token_advantages(batch, spec_of(advantage_estimator="dr_grpo", normalize_advantages=True), None)
    torch.testing.assert_close(normal, made)


def test_a_long_answer_loses_reward():
    batch = batch_of(random_rollout(6, longest=16))
    with_penalty = spec_of(overlong_buffer_len=8, overlong_penalty_factor=0.5)
    changed = token_advantages(batch, with_penalty, None) != token_advantages(batch, spec_of(), None)
    assert changed.any()
