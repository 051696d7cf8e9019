"""The policy loss, its corrections and aggregations against a reference written token by token."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.errors import PolicyError
from miles.policy.losses import LossSpec, normaliser, token_losses, token_weights
from tests.policy.builders import config

pytestmark = pytest.mark.unit

CORRECTIONS = ["none", "rollout-logprobs", "tis", "icepop"]
AGGREGATIONS = ["token-mean", "sequence-mean", "sequence-sum-over-constant"]
LOGPROB = st.floats(-6, 0, width=32)
TOKEN = st.tuples(LOGPROB, LOGPROB, LOGPROB)
SEQUENCE = st.tuples(st.sampled_from([0.0, 1.0, -1.0, 0.3, -2.0]), st.lists(TOKEN, max_size=6))
SEQUENCES = st.lists(SEQUENCE, min_size=1, max_size=5)


def spec(correction="none", aggregation="token-mean", **changes):
    fields = {"eps_low": 0.2, "eps_high": 0.28, "weight_low": 0.5, "weight_high": 2.0, "entropy_coef": 0.0, "constant": 7.0}
    return LossSpec(correction=correction, aggregation=aggregation, **(fields | changes))


def token_reference(current, old, sampled, advantage, chosen):
    """−min(r·A, clip(r)·A), times the weight; plain floats."""
    ratio = math.exp(current - (sampled if chosen.correction == "rollout-logprobs" else old))
    bounded = min(max(ratio, 1 - chosen.eps_low), 1 + chosen.eps_high)
    loss = -min(ratio * advantage, bounded * advantage)
    weight = math.exp(old - sampled)
    if chosen.correction == "tis":
        return loss * min(max(weight, chosen.weight_low), chosen.weight_high)
    if chosen.correction == "icepop":
        return loss * weight if chosen.weight_low <= weight <= chosen.weight_high else 0.0
    return loss


def reference(sequences, chosen):
    """The aggregated loss, sequence by sequence."""
    losses = [[token_reference(*token, advantage, chosen) for token in tokens] for advantage, tokens in sequences]
    if chosen.aggregation == "token-mean":
        return sum(map(sum, losses)) / max(sum(map(len, losses)), 1)
    if chosen.aggregation == "sequence-mean":
        return sum(sum(part) / len(part) for part in losses if part) / len(losses)
    return sum(map(sum, losses)) / (len(losses) * chosen.constant)


def computed(sequences, chosen, dtype, divisor=None):
    """Ours, on flat columns."""
    flat = [(token, advantage, len(tokens)) for advantage, tokens in sequences for token in tokens]
    columns = torch.tensor([token for token, _, _ in flat], dtype=dtype).reshape(-1, 3).unbind(1)
    advantages = torch.tensor([advantage for _, advantage, _ in flat], dtype=dtype)
    lengths = torch.tensor([length for _, _, length in flat], dtype=dtype)
    divisor = divisor or normaliser(len(flat), len(sequences), chosen)
    losses = token_losses(*columns, advantages, chosen)
    return float(torch.dot(losses.loss, token_weights(lengths, chosen, divisor)))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("correction", CORRECTIONS)
@given(sequences=SEQUENCES)
@settings(max_examples=25, deadline=None)
def test_equals_the_reference(correction, aggregation, sequences):
    chosen = spec(correction, aggregation)
    expected = reference(sequences, chosen)
    assert computed(sequences, chosen, torch.float64) == pytest.approx(expected, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("correction", CORRECTIONS)
@given(sequences=SEQUENCES)
@settings(max_examples=25, deadline=None)
def test_float32_is_close(correction, sequences):
    chosen = spec(correction, weight_low=0.0, weight_high=1e9)  # no edge on which rounding decides
    expected = reference(sequences, chosen)
    assert computed(sequences, chosen, torch.float32) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(sequences=SEQUENCES, cut=st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_parts_add_up_to_the_whole(aggregation, sequences, cut):
    chosen = spec("tis", aggregation)
    divisor = normaliser(sum(len(tokens) for _, tokens in sequences), len(sequences), chosen)
    parts = [computed(part, chosen, torch.float64, divisor) for part in (sequences[:cut], sequences[cut:])]
    assert sum(parts) == pytest.approx(computed(sequences, chosen, torch.float64), rel=1e-10, abs=1e-12)


def test_gradient_stops_where_the_clip_decides_and_never_flows_through_old_or_weight():
    current = torch.tensor([0.0, 0.5, -0.5, 0.5, -0.5], dtype=torch.float64, requires_grad=True)
    old = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    sampled = torch.full((5,), -0.1, dtype=torch.float64)
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    losses = token_losses(current, old, sampled, advantages, spec("tis"))
    losses.loss.sum().backward()
    weight = math.exp(0.1)
    ratios = [1.0, 0.0, math.exp(-0.5), math.exp(0.5), 0.0]
    assert current.grad.tolist() == pytest.approx([-a * r * weight for a, r in zip(advantages.tolist(), ratios, strict=True)])
    assert old.grad is None
    assert losses.clipped.tolist() == [False, True, False, False, True]


def test_a_ratio_beyond_every_number_leaves_a_finite_gradient():
    current = torch.tensor([0.0, 0.0], requires_grad=True)
    losses = token_losses(current, torch.full((2,), -2000.0), torch.zeros(2), torch.tensor([1.0, -1.0]), spec())
    losses.loss.sum().backward()
    assert torch.isfinite(losses.loss).all()
    assert current.grad.isfinite().all()


def test_limits_of_the_weight_are_counted():
    old, sampled = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([0.0, -1.0, 1.0])
    for correction, weights in (("tis", [1.0, 2.0, 0.5]), ("icepop", [1.0, 0.0, 0.0])):
        losses = token_losses(old, old, sampled, torch.full((3,), -1.0), spec(correction))
        assert losses.loss.tolist() == weights
        assert losses.limited.tolist() == [False, True, True]


def test_an_empty_global_batch_has_a_normaliser():
    assert [normaliser(0, 4, spec(aggregation=name)) for name in AGGREGATIONS] == [1.0, 4.0, 28.0]


def test_the_options_say_what_the_loss_is():
    made = LossSpec.from_config(config(eps_clip=0.1, off_policy_correction="tis", tis_clip=3.0, tis_clip_low=0.2))
    assert made == LossSpec("tis", "token-mean", 0.1, 0.1, 0.2, 3.0, 0.0, 16.0)
    assert LossSpec.from_config(config(eps_clip=0.1, eps_clip_high=0.3)).eps_high == 0.3


def test_a_correction_without_a_loss_is_refused():
    made = config()
    other = made.model_copy(update={"algorithm": made.algorithm.model_copy(update={"off_policy_correction": "decoupled"})})
    with pytest.raises(PolicyError, match="off_policy_correction = decoupled"):
        LossSpec.from_config(other)
