"""Optimiser steps against a plain reference, and the laws that hold however a batch is cut."""

import dataclasses
import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.errors import PolicyError
from miles.policy.ranks import OneRank
from miles.policy.trainer import Trainer
from miles.types import VersionSpan
from tests.policy.builders import causal_lm, config, derived, policy_model, random_rollout, rollout, sample
from tests.policy.reference import ReferenceTrainer

pytestmark = pytest.mark.unit


def trainer(made, *, num_steps=1, dtype=torch.float64, family="qwen3", temperature=1.0, limits=None, **options):
    """A trainer for rollouts of the size of ``made``."""
    sizes = derived(len(made.samples), num_steps=num_steps, **(limits or {}))
    return Trainer(config(temperature=temperature, **options), sizes, model=policy_model(family, dtype))


def gradient(made, **options):
    """The gradient of one optimiser step, in one vector."""
    built = trainer(made, **options)
    built.train_on(made, 0)
    return torch.cat([parameter.grad.flatten() for parameter in built.model.parameters()])


def relative(one, other):
    """‖one − other‖ / ‖other‖."""
    return float((one - other).norm() / other.norm().clamp(min=1e-30))


CASES = [
    {"off_policy_correction": "none"},
    {"off_policy_correction": "rollout-logprobs", "loss_aggregation": "sequence-mean"},
    {"off_policy_correction": "tis", "loss_aggregation": "sequence-sum-over-constant", "eps_clip_high": 0.5},
    {"off_policy_correction": "icepop", "tis_clip_low": 0.5, "grpo_std_normalization": False},
    {"off_policy_correction": "none", "entropy_coef": 0.05, "loss_aggregation": "sequence-mean", "weight_decay": 0.1},
    {"off_policy_correction": "tis", "tis_clip": 1.1, "clip_grad": 0.05, "lr_decay_style": "linear", "lr_warmup_iters": 2},
]


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("options", CASES, ids=lambda options: options["off_policy_correction"])
def test_weights_and_metrics_equal_a_plain_trainer(options, num_steps):
    rollouts = [random_rollout(seed, num_groups=3, group_size=4, longest=6) for seed in (1, 2)]
    ours = trainer(rollouts[0], num_steps=num_steps, temperature=0.8, limits={"max_tokens_per_gpu": 70}, **options)
    plain = ReferenceTrainer(policy_model().causal_lm, config(temperature=0.8, **options), num_steps, horizon=100)
    for made in rollouts:
        report, expected = ours.train_on(made, 0), plain.train_on(made)
        assert report.num_optimizer_steps == num_steps
        assert report.metrics == pytest.approx(expected, rel=1e-5, abs=1e-7)
    for (name, mine), theirs in zip(ours.model.causal_lm.named_parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@given(seed=st.integers(0, 10_000), case=st.sampled_from(CASES[:5]))
@settings(max_examples=8, deadline=None)
def test_the_gradient_does_not_depend_on_the_cut(seed, case):
    made = random_rollout(seed, num_groups=2, group_size=3, longest=6)
    whole = gradient(made, **case)
    for limits in ({"micro_batch_size": 1}, {"micro_batch_size": 2}, {"max_tokens_per_gpu": 24}):
        assert relative(gradient(made, limits=limits, **case), whole) <= 1e-6


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_float32_gradients_agree_too(family):
    made = random_rollout(5)
    exact = gradient(made, family=family)
    for limits in ({}, {"micro_batch_size": 1}, {"max_tokens_per_gpu": 30}):
        assert relative(gradient(made, family=family, limits=limits, dtype=torch.float32).double(), exact) <= 1e-4


def test_plain_rows_and_gradient_checkpointing_leave_the_gradient_alone(monkeypatch):
    made = random_rollout(6)
    whole = gradient(made)
    built = trainer(made)
    built.model.causal_lm.gradient_checkpointing_enable({"use_reentrant": False})
    built.train_on(made, 0)
    assert relative(torch.cat([parameter.grad.flatten() for parameter in built.model.parameters()]), whole) <= 1e-6
    monkeypatch.setattr("miles.policy.model.attends_everywhere", lambda config: False)
    assert relative(gradient(made), whole) <= 1e-6


@pytest.mark.parametrize("size", [1, 7, 24, 1000])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.05])
def test_chunks_of_the_vocabulary_leave_gradient_and_metrics_alone(size, entropy_coef):
    made = random_rollout(6, num_groups=2)
    built = [trainer(made, temperature=0.7, entropy_coef=entropy_coef, vocab_chunk_size=chunk) for chunk in (None, size)]
    whole, chunked = (one.train_on(made, 0).metrics for one in built)
    assert chunked == pytest.approx(whole, rel=1e-9, abs=1e-12)
    vectors = [torch.cat([parameter.grad.flatten() for parameter in one.model.parameters()]) for one in built]
    assert relative(*vectors) <= 1e-9


def test_leaving_out_zero_advantages_leaves_the_gradient_alone(monkeypatch):
    made = random_rollout(7)
    skipping = gradient(made)
    monkeypatch.setattr("miles.policy.loss_spec.LossSpec.skips_zero_advantages", property(lambda spec: False))
    forwarding = gradient(made)
    assert relative(skipping, forwarding) <= 1e-6


@pytest.fixture
def anchor(tmp_path):
    """Another model in a folder, to compare with."""
    made = causal_lm(seed=3)
    made.save_pretrained(tmp_path / "reference")
    return made.double(), tmp_path / "reference"


@pytest.mark.parametrize("num_steps", [1, 2])
@pytest.mark.parametrize("options", [{"use_kl_loss": True, "kl_loss_coef": 0.3}, {"kl_coef": 0.05}], ids=["loss", "reward"])
def test_kl_terms_equal_a_plain_trainer(anchor, options, num_steps):
    made = random_rollout(2, num_groups=2, group_size=4, longest=6)
    ours = trainer(made, num_steps=num_steps, ref_load=anchor[1], **options)
    ours.reference.model.double()
    plain = ReferenceTrainer(policy_model().causal_lm, config(**options), num_steps, horizon=100, anchor=anchor[0])
    report, expected = ours.train_on(made, 0).metrics, plain.train_on(made)
    report.pop("train/reward_kl", None)
    assert report == pytest.approx(expected, rel=1e-5, abs=1e-7)
    for mine, theirs in zip(ours.model.causal_lm.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_the_reference_follows_the_policy_where_asked(anchor):
    made = random_rollout(2, num_groups=2)
    built = trainer(made, dtype=torch.float32, ref_load=anchor[1], ref_update_interval=2, use_kl_loss=True, kl_loss_coef=0.1)
    for rollout_id, follows in ((0, False), (1, True), (2, False)):
        built.train_on(dataclasses.replace(made, rollout_id=rollout_id), 0)
        same = [torch.equal(*pair) for pair in zip(built.reference.model.parameters(), built.model.parameters(), strict=True)]
        assert all(same) is follows


def test_a_reference_of_another_vocabulary_is_refused(tmp_path):
    causal_lm(vocab_size=30).save_pretrained(tmp_path)
    with pytest.raises(PolicyError, match="vocabulary of 30 tokens, the policy one of 24"):
        trainer(random_rollout(2), ref_load=tmp_path, use_kl_loss=True)


@pytest.mark.parametrize("estimator", ["dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gspo", "cispo"])
def test_every_estimator_takes_steps_that_do_not_depend_on_the_cut(estimator):
    made = random_rollout(4, num_groups=2, group_size=4, longest=6)
    options = {"advantage_estimator": estimator, "off_policy_correction": "tis", "num_steps": 2}
    weights = []
    for limits in ({}, {"micro_batch_size": 1}):
        built = trainer(made, limits=limits, **options)
        assert built.train_on(made, 0).metrics["train/grad_norm"] > 0
        weights.append(torch.cat([parameter.detach().flatten() for parameter in built.model.parameters()]))
    assert relative(*weights) <= 1e-6


def test_decoupled_is_tis_at_the_first_step_and_costs_no_pass_for_later_ones():
    made = random_rollout(4, num_groups=2, group_size=4, longest=6)
    first = [gradient(made, off_policy_correction=correction) for correction in ("tis", "decoupled")]
    assert torch.equal(*first)
    passes = {}
    for correction in ("tis", "decoupled"):
        built = trainer(made, num_steps=2, off_policy_correction=correction, entropy_coef=0.01)
        forward, count = built.model.forward, []
        built.model.forward = lambda *given, forward=forward, count=count: count.append(1) or forward(*given)
        built.train_on(made, 2)
        passes[correction] = len(count)
    assert passes == {"tis": 3, "decoupled": 2}


def test_decoupled_with_its_old_recomputed_is_tis_at_every_step():
    made, metrics = random_rollout(4, num_groups=2, group_size=4, longest=6), []
    for options in ({"off_policy_correction": "tis"}, {"off_policy_correction": "decoupled", "proximal_policy": "recomputed"}):
        metrics.append(trainer(made, num_steps=2, **options).train_on(made, 2).metrics)
    assert metrics[0] == metrics[1]
    assert trainer(made, num_steps=2, off_policy_correction="decoupled").train_on(made, 2).metrics != metrics[0]


def test_metrics_are_told_apart_by_staleness():
    made = random_rollout(9, num_groups=2)
    spans = lambda one, version: (VersionSpan(version, 0, len(one.response_ids)),)  # noqa: E731
    groups = [
        dataclasses.replace(group, samples=tuple(dataclasses.replace(s, versions=spans(s, 3 - number)) for s in group.samples))
        for number, group in enumerate(made.groups)
    ]
    aged = dataclasses.replace(made, groups=tuple(groups))
    metrics = trainer(made, off_policy_correction="tis", entropy_coef=0.01).train_on(aged, 3).metrics
    ages = {name.split("/")[1] for name in metrics if "staleness" in name}
    assert ages == {"staleness_0", "staleness_1"}
    names = {name.rpartition("/")[2] for name in metrics if "staleness" in name}
    assert names == {
        "ppo_kl", "pg_clipfrac", "train_rollout_logprob_abs_diff", "train_rollout_kl", "ess", "importance_ratio", "tis_clipfrac"
    }  # fmt: skip
    low, high = sorted(metrics[f"train/{age}/importance_ratio"] for age in ages)
    assert low < metrics["train/importance_ratio"] < high


def test_one_age_is_told_where_it_is_not_that_of_the_policy():
    made = random_rollout(9, num_groups=2)
    options = {"off_policy_correction": "icepop", "tis_clip": 1.05}
    stale, fresh = (trainer(made, **options).train_on(made, version).metrics for version in (2, 0))
    assert stale["train/staleness_2/icepop_maskfrac"] == stale["train/icepop_maskfrac"] > 0
    assert not any("staleness" in name for name in fresh)


def equal_rewards():
    """A rollout without a signal."""
    return rollout([[sample(0, index, (1, 2), (3, 4, 5)) for index in range(4)]])


def test_without_a_signal_nothing_is_forwarded_and_the_optimiser_still_steps(monkeypatch):
    made = random_rollout(8, num_groups=1)
    built = trainer(made)
    built.train_on(made, 0)
    before = [parameter.detach().clone() for parameter in built.model.parameters()]
    monkeypatch.setattr(built.model, "forward", lambda *arguments: pytest.fail("a forward pass"))
    report = built.train_on(equal_rewards(), 1)
    assert report.metrics["train/zero_advantage_share"] == 1
    assert report.metrics["train/loss"] == report.metrics["train/grad_norm"] == 0
    assert "train/ess" not in report.metrics
    assert built.num_optimizer_steps == 2
    assert any(not torch.equal(old, new) for old, new in zip(before, built.model.parameters(), strict=True))  # momentum moves on


def test_the_entropy_bonus_reads_samples_without_advantage():
    report = trainer(equal_rewards(), entropy_coef=0.1).train_on(equal_rewards(), 0)
    assert report.metrics["train/entropy"] > 0
    assert report.metrics["train/grad_norm"] > 0
    assert report.metrics["train/loss"] == pytest.approx(-0.1 * report.metrics["train/entropy"])


@pytest.mark.parametrize("masks", [[(), ()], [(0, 0), (0, 0)]])
def test_a_rollout_without_trained_tokens_is_no_error(masks):
    made = rollout([[sample(0, i, (1,), (2,) * len(m), loss_mask=m, reward=float(i)) for i, m in enumerate(masks)]])
    report = trainer(made).train_on(made, 0)
    assert (report.num_optimizer_steps, report.metrics["train/empty_optimizer_steps"]) == (0, 1)


def test_a_step_without_trained_tokens_is_not_taken():
    made = random_rollout(3, num_groups=2, group_size=4)
    masked = dataclasses.replace(made, groups=(without_loss(made.groups[0]), made.groups[1]))
    built = trainer(made, num_steps=2)
    report = built.train_on(masked, 0)
    assert (report.num_optimizer_steps, report.metrics["train/empty_optimizer_steps"]) == (1, 1)
    assert built.num_optimizer_steps == 1
    alone = trainer(rollout([list(made.groups[1].samples)]), num_steps=1)
    alone.train_on(rollout([list(made.groups[1].samples)]), 0)
    for ours, theirs in zip(built.model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    assert "train/empty_optimizer_steps" not in built.train_on(made, 0).metrics


def without_loss(group):
    """The group with no token in the loss."""
    samples = (dataclasses.replace(one, loss_mask=(0,) * len(one.loss_mask)) for one in group.samples)
    return dataclasses.replace(group, samples=tuple(samples))


def test_on_policy_metrics_say_so():
    made = random_rollout(9, num_groups=2)
    built = trainer(made)
    scored = ReferenceTrainer(built.model.causal_lm, config(), 1, horizon=100).with_exact_logprobs(made)
    metrics = built.train_on(scored, 0).metrics
    assert metrics["train/train_rollout_logprob_abs_diff"] == pytest.approx(0, abs=1e-5)
    assert metrics["train/ess"] == pytest.approx(1)
    assert metrics["train/ppo_kl"] == metrics["train/pg_clipfrac"] == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_stops_before_the_weights(bad):
    made = random_rollout(10)
    built = trainer(made)
    weight = built.model.causal_lm.model.layers[0].mlp.up_proj.weight
    weight.register_hook(lambda grad: torch.full_like(grad, bad))
    before = [parameter.detach().clone() for parameter in built.model.parameters()]
    with pytest.raises(PolicyError, match=rf"rollout 10 \(policy version 3\), optimiser step 0: .*norm {bad}.*not taken"):
        built.train_on(made, 3)
    assert all(torch.equal(old, new) for old, new in zip(before, built.model.parameters(), strict=True))
    assert built.num_optimizer_steps == 0


def test_a_step_that_is_no_number_can_be_skipped():
    made = random_rollout(10)
    skipping, plain = trainer(made, non_finite_steps="skip"), trainer(made)
    weight = skipping.model.causal_lm.model.layers[0].mlp.up_proj.weight
    hook = weight.register_hook(lambda grad: torch.full_like(grad, math.nan))
    report = skipping.train_on(made, 0)
    assert report.num_optimizer_steps == skipping.num_optimizer_steps == 0
    assert report.metrics.keys() == {"train/skipped_steps", "train/zero_advantage_share"}
    hook.remove()
    assert skipping.train_on(made, 0).metrics == plain.train_on(made, 0).metrics
    assert all(map(torch.equal, skipping.model.parameters(), plain.model.parameters()))


def test_a_rollout_of_another_size_is_refused():
    made = random_rollout(11)
    with pytest.raises(PolicyError, match="rollout 12 has 8 samples, but 1 × global_batch_size 12 = 12"):
        trainer(made).train_on(random_rollout(12, num_groups=2), 0)


def test_the_same_rollouts_give_the_same_bits():
    made = [random_rollout(seed) for seed in (13, 14)]
    runs = []
    for _ in range(2):
        built = trainer(made[0], num_steps=2, dtype=torch.float32, lr_decay_style="cosine")
        reports = [built.train_on(one, 0).metrics for one in made]
        runs.append((reports, [parameter.detach().clone() for parameter in built.model.parameters()]))
    assert runs[0][0] == runs[1][0]
    assert all(map(torch.equal, runs[0][1], runs[1][1]))


@pytest.mark.parametrize("num_ranks", [2, 3, 20])
def test_the_gradients_of_all_ranks_add_up_to_the_whole(num_ranks):
    """Each rank finds its own share without a word; more ranks than samples are no exception."""

    class Lonely(OneRank):
        """A rank that hears nothing of the others."""

        def __init__(self, index):
            self.index, self.size = index, num_ranks

    made, shares, numbers = random_rollout(15), [], set()
    for index in range(num_ranks):
        built = Trainer(config(), derived(len(made.samples)), ranks=Lonely(index), model=policy_model())
        forward, passes = built.model.forward, []
        built.model.forward = lambda *given, forward=forward, passes=passes: passes.append(1) or forward(*given)
        built.train_on(made, 0)
        shares.append(torch.cat([parameter.grad.flatten() for parameter in built.model.parameters()]))
        numbers.add(len(passes))
    assert relative(sum(shares), gradient(made)) <= 1e-9
    assert len(numbers) == 1
    assert num_ranks > 2 or all(share.norm() > 0 for share in shares)


def test_learning_rate_is_the_schedules():
    made = random_rollout(16)
    built = trainer(made, lr=1e-3, lr_warmup_iters=2)
    rates = [built.train_on(dataclasses.replace(made, rollout_id=k), k).metrics["train/lr"] for k in range(3)]
    assert rates == [0.0, 0.0005, 0.001]
    assert statistics.fmean(rates) == pytest.approx(5e-4)
