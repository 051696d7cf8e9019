"""The policy loss, its corrections and aggregations against a reference written token by token."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.errors import PolicyError
from miles.policy.kl import kl_terms
from miles.policy.loss_spec import LossSpec
from miles.policy.losses import TokenColumns, interpolated_old, normaliser, token_losses, token_weights
from tests.policy.builders import config

pytestmark = pytest.mark.unit

CORRECTIONS = ["none", "rollout-logprobs", "tis", "icepop", "decoupled"]
SURROGATES = ["clip", "gspo", "cispo", "dual"]
AGGREGATIONS = ["token-mean", "sequence-mean", "sequence-sum-over-constant"]
LOGPROB = st.floats(-6, 0, width=32)
TOKEN = st.tuples(LOGPROB, LOGPROB, LOGPROB)
SEQUENCE = st.tuples(st.sampled_from([0.0, 1.0, -1.0, 0.3, -2.0]), st.lists(TOKEN, max_size=6))
SEQUENCES = st.lists(SEQUENCE, min_size=1, max_size=5)


def spec(correction="none", aggregation="token-mean", **changes):
    fields = {"eps_low": 0.2, "eps_high": 0.28, "weight_low": 0.5, "weight_high": 2.0, "entropy_coef": 0.0, "constant": 7.0}
    return LossSpec(correction=correction, aggregation=aggregation, **(fields | changes))


def columns_of(sequences, dtype):
    """Flat columns of (π, old, μ) by sequence."""
    flat = [(*token, advantage, len(tokens), number) for number, (advantage, tokens) in enumerate(sequences) for token in tokens]
    current, old, sampled, advantages, lengths, owner = torch.tensor(flat, dtype=dtype).reshape(-1, 6).unbind(1)
    return TokenColumns(current, old, sampled, advantages, owner.long(), lengths)


def token_reference(tokens, place, advantage, chosen):
    """The loss of one token of a sequence, times its weight; plain floats."""
    anchors = [sampled if chosen.correction == "rollout-logprobs" else old for _, old, sampled in tokens]
    current, old, sampled = tokens[place]
    ratio = math.exp(current - anchors[place])
    if chosen.surrogate == "gspo":
        ratio = math.exp(sum(token[0] - anchor for token, anchor in zip(tokens, anchors, strict=True)) / len(tokens))
    bounded = min(max(ratio, 1 - chosen.eps_low), 1 + chosen.eps_high)
    if chosen.surrogate == "cispo":
        loss = -bounded * advantage * current
    else:
        gain = min(ratio * advantage, bounded * advantage)
        if chosen.eps_dual is not None and advantage < 0:
            gain = max(gain, chosen.eps_dual * advantage)
        loss = -gain
    weight = math.exp(old - sampled)
    if chosen.correction in ("tis", "decoupled"):
        return loss * min(max(weight, chosen.weight_low), chosen.weight_high)
    if chosen.correction == "icepop":
        return loss * weight if chosen.weight_low <= weight <= chosen.weight_high else 0.0
    return loss


def reference(sequences, chosen):
    """The aggregated loss, sequence by sequence."""
    losses = [
        [token_reference(tokens, place, advantage, chosen) for place in range(len(tokens))] for advantage, tokens in sequences
    ]
    if chosen.aggregation == "token-mean":
        return sum(map(sum, losses)) / max(sum(map(len, losses)), 1)
    if chosen.aggregation == "sequence-mean":
        return sum(sum(part) / len(part) for part in losses if part) / len(losses)
    return sum(map(sum, losses)) / (len(losses) * chosen.constant)


def computed(sequences, chosen, dtype, divisor=None):
    """Ours, on flat columns."""
    columns = columns_of(sequences, dtype)
    divisor = divisor or normaliser(len(columns.current), len(sequences), chosen)
    return float(torch.dot(token_losses(columns, chosen).loss, token_weights(columns.num_tokens, chosen, divisor)))


@pytest.mark.parametrize("surrogate", SURROGATES)
@given(sequences=SEQUENCES)
@settings(max_examples=25, deadline=None)
def test_every_surrogate_equals_its_formula(surrogate, sequences):
    dual = {"eps_dual": 3.0} if surrogate == "dual" else {"surrogate": surrogate}
    for correction in ("none", "rollout-logprobs", "tis"):
        chosen = spec(correction, "sequence-mean", **dual)
        expected = reference(sequences, chosen)
        assert computed(sequences, chosen, torch.float64) == pytest.approx(expected, rel=1e-10, abs=1e-10)
        assert computed(sequences, chosen, torch.float32) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_the_gradient_of_gspo_is_that_of_the_sequences_ratio():
    """d/dπ_t of −s·A with s = exp(mean(π − old)) is −s·A/n at every token of the sequence."""
    current = torch.tensor([-1.0, -2.0, -0.5, -3.0], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-1.05, -2.02, -0.45, -3.0], dtype=torch.float64)
    owner, lengths = torch.tensor([0, 0, 0, 1]), torch.tensor([3.0, 3.0, 3.0, 1.0], dtype=torch.float64)
    columns = TokenColumns(current, old, old, torch.tensor([2.0, 2.0, 2.0, -1.0], dtype=torch.float64), owner, lengths)
    chosen = spec(aggregation="sequence-mean", surrogate="gspo")
    torch.dot(token_losses(columns, chosen).loss, token_weights(lengths, chosen, 2.0)).backward()
    ratio = math.exp((0.05 + 0.02 - 0.05) / 3)
    assert current.grad.tolist() == pytest.approx([*[-ratio * 2 / 3 / 2] * 3, 0.5], rel=1e-12)


def test_the_gradient_of_cispo_never_stops():
    current = torch.tensor([0.0, 0.0], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    columns = TokenColumns(current, old, old, torch.tensor([1.0, -1.0], dtype=torch.float64), torch.tensor([0, 1]), torch.ones(2))
    losses = token_losses(columns, spec(surrogate="cispo"))
    losses.loss.sum().backward()
    assert current.grad.tolist() == pytest.approx([-1.28, 0.8])
    assert losses.clipped.tolist() == [True, True]


@given(current=LOGPROB, sampled=LOGPROB, age=st.floats(0, 5), progress=st.floats(0.01, 3))
@settings(max_examples=50, deadline=None)
def test_old_lies_between_sampler_and_policy_by_age(current, sampled, age, progress):
    made = interpolated_old(*(torch.tensor([v], dtype=torch.float64) for v in (current, sampled, age)), progress)
    assert float(made) == pytest.approx(sampled + (current - sampled) * age / (age + progress), abs=1e-12)
    assert float(interpolated_old(*(torch.tensor([v]) for v in (current, sampled, age)), 0.0)) == current


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "low_var_kl"])
@given(current=LOGPROB, reference=LOGPROB)
@settings(max_examples=40, deadline=None)
def test_kl_estimators_equal_their_formulas(kind, current, reference):
    d = current - reference
    k3 = math.exp(-d) - 1 + d
    expected = {"k1": d, "k2": d * d / 2, "k3": k3, "low_var_kl": min(k3, 10.0)}[kind]
    made = kl_terms(torch.tensor([current], dtype=torch.float64), torch.tensor([reference], dtype=torch.float64), kind)
    assert float(made) == pytest.approx(expected, rel=1e-10, abs=1e-12)
    assert kind == "k1" or float(made) >= 0


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_the_unbiased_form_has_the_gradient_of_the_kl_itself(kind):
    """Summed over a whole distribution with the sampler's probabilities, the gradient is that of KL(π ‖ reference)."""
    logits = torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.1, 0.2, -0.4], dtype=torch.float64).log_softmax(0)
    sampler = torch.tensor([0.0, 0.5, 0.2], dtype=torch.float64).log_softmax(0)
    current = logits.log_softmax(0)
    exact = torch.autograd.grad((current.exp() * (current - reference)).sum(), logits, retain_graph=True)[0]
    tokens = TokenColumns(current, sampler, sampler, torch.zeros(3), torch.arange(3), torch.ones(3), reference)
    kl = token_losses(tokens, spec(kl_kind=kind, kl_unbiased=True)).kl
    made = torch.autograd.grad((sampler.exp() * kl).sum(), logits)[0]
    if kind == "k2":  # estimates another divergence; its on-policy gradient is that of the KL, its expectation's is not
        assert not torch.allclose(made, exact)
    else:
        torch.testing.assert_close(made, exact)


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


def alone(current, old, sampled, advantages):
    """Columns of samples of one token each."""
    return TokenColumns(current, old, sampled, advantages, torch.arange(len(current)), torch.ones_like(current))


def test_gradient_stops_where_the_clip_decides_and_never_flows_through_old_or_weight():
    current = torch.tensor([0.0, 0.5, -0.5, 0.5, -0.5], dtype=torch.float64, requires_grad=True)
    old = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    sampled = torch.full((5,), -0.1, dtype=torch.float64)
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    losses = token_losses(alone(current, old, sampled, advantages), spec("tis"))
    losses.loss.sum().backward()
    weight = math.exp(0.1)
    ratios = [1.0, 0.0, math.exp(-0.5), math.exp(0.5), 0.0]
    assert current.grad.tolist() == pytest.approx([-a * r * weight for a, r in zip(advantages.tolist(), ratios, strict=True)])
    assert old.grad is None
    assert losses.clipped.tolist() == [False, True, False, False, True]


def test_a_ratio_beyond_every_number_leaves_a_finite_gradient():
    current = torch.tensor([0.0, 0.0], requires_grad=True)
    losses = token_losses(alone(current, torch.full((2,), -2000.0), torch.zeros(2), torch.tensor([1.0, -1.0])), spec())
    losses.loss.sum().backward()
    assert torch.isfinite(losses.loss).all()
    assert current.grad.isfinite().all()


def test_limits_of_the_weight_are_counted():
    old, sampled = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([0.0, -1.0, 1.0])
    for correction, weights in (("tis", [1.0, 2.0, 0.5]), ("icepop", [1.0, 0.0, 0.0])):
        losses = token_losses(alone(old, old, sampled, torch.full((3,), -1.0)), spec(correction))
        assert losses.loss.tolist() == weights
        assert losses.limited.tolist() == [False, True, True]


def test_an_empty_global_batch_has_a_normaliser():
    assert [normaliser(0, 4, spec(aggregation=name)) for name in AGGREGATIONS] == [1.0, 4.0, 28.0]


def test_the_options_say_what_the_loss_is():
    made = LossSpec.from_config(config(eps_clip=0.1, off_policy_correction="tis", tis_clip=3.0, tis_clip_low=0.2))
    expected = LossSpec("tis", "token-mean", eps_low=0.1, eps_high=0.1, weight_low=0.2, weight_high=3.0, constant=16.0)
    assert made == expected
    assert LossSpec.from_config(config(eps_clip=0.1, eps_clip_high=0.3)).eps_high == 0.3


@pytest.mark.parametrize(
    ("estimator", "surrogate", "aggregation"),
    [
        ("grpo", "clip", "token-mean"),
        ("dr_grpo", "clip", "sequence-sum-over-constant"),
        ("gspo", "gspo", "sequence-mean"),
        ("cispo", "cispo", "token-mean"),
        ("rloo", "clip", "token-mean"),
        ("reinforce_plus_plus", "clip", "token-mean"),
    ],
)
def test_an_estimator_brings_its_surrogate_and_aggregation(estimator, surrogate, aggregation):
    made = LossSpec.from_config(config(advantage_estimator=estimator))
    assert (made.surrogate, made.aggregation) == (surrogate, aggregation)
    asked = LossSpec.from_config(config(advantage_estimator=estimator, loss_aggregation="sequence-mean"))
    assert asked.aggregation == "sequence-mean"


def squared_distance(tokens):
    """A loss of one's own."""
    return (tokens.current - tokens.sampled).square() * tokens.advantages


def wrong_shape(tokens):
    """One number for all."""
    return tokens.current.mean()


def test_a_loss_of_ones_own():
    columns = alone(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([3.0]), torch.tensor([2.0]))
    made = LossSpec.from_config(config(custom_loss_function_path=f"{__name__}:squared_distance"))
    assert token_losses(columns, made).loss.tolist() == [8.0]
    assert not made.skips_zero_advantages
    with pytest.raises(PolicyError, match=r"gave something of shape \(\) for 1 tokens"):
        token_losses(columns, LossSpec.from_config(config(custom_loss_function_path=f"{__name__}:wrong_shape")))
