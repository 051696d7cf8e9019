"""PPO's critic and what it makes of rewards, against plain references: GAE from its paper, values from transformers alone."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from miles.errors import CheckpointError, NotFiniteError
from miles.policy.advantages import generalised_advantages, whitened
from miles.policy.checkpoint import load_checkpoint, save_checkpoint
from miles.policy.critic import with_returns
from miles.policy.estimate import AdvantageSpec, beside_values
from miles.policy.losses import clipped_value_loss
from miles.policy.offload import move_trainer
from miles.policy.trainer import Trainer
from miles.policy.value_model import ValueModel
from tests.policy.builders import PRESET, batch_of, causal_lm, config, derived, policy_model, random_rollout
from tests.policy.test_trainer import relative

pytestmark = pytest.mark.unit
NUMBER = st.floats(-3, 3, width=32)
ANSWERS = st.lists(st.lists(st.tuples(NUMBER, NUMBER), max_size=6), min_size=1, max_size=5)
SHARE = st.floats(0, 1)
MADE = random_rollout(3, num_groups=2)


def gae(rewards, values, gamma, lambd):
    """Eq. 16: the sum of (γλ)^l δ_{t+l}, each δ by eq. 11–12; plain floats."""
    padded = [*values, 0.0]
    deltas = [rewards[t] + gamma * padded[t + 1] - padded[t] for t in range(len(rewards))]
    return [sum((gamma * lambd) ** later * deltas[t + later] for later in range(len(deltas) - t)) for t in range(len(deltas))]


def estimated(answers, gamma, lambd, dtype=torch.float64):
    """Ours, on flat columns."""
    flat = torch.tensor(list(itertools.chain(*answers)), dtype=dtype).reshape(-1, 2)
    offsets = torch.tensor([0, *map(len, answers)]).cumsum(0)
    return generalised_advantages(flat[:, 0], flat[:, 1], offsets, gamma, lambd), flat, offsets


@given(ANSWERS, SHARE, SHARE)
@settings(max_examples=60, deadline=None)
def test_advantages_equal_the_papers_sum(answers, gamma, lambd):
    expected = [value for tokens in answers for value in gae([r for r, _ in tokens], [v for _, v in tokens], gamma, lambd)]
    assert estimated(answers, gamma, lambd)[0].tolist() == pytest.approx(expected, rel=1e-10, abs=1e-10)
    assert estimated(answers, gamma, lambd, torch.float32)[0].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-4)


@given(ANSWERS, SHARE)
@settings(max_examples=40, deadline=None)
def test_lambda_1_is_the_return_less_the_value_and_lambda_0_one_step(answers, gamma):
    made, flat, offsets = estimated(answers, gamma, 1.0)
    for start, end in itertools.pairwise(offsets.tolist()):
        for place in range(start, end):
            rest = sum(gamma ** (later - place) * float(flat[later, 0]) for later in range(place, end))
            assert float(made[place]) == pytest.approx(rest - float(flat[place, 1]), abs=1e-9)
    one_step = estimated(answers, gamma, 0.0)[0]
    following = torch.cat((flat[1:, 1], flat.new_zeros(1))) if len(flat) else flat[:, 1]
    following[[end - 1 for start, end in itertools.pairwise(offsets.tolist()) if end > start]] = 0.0
    torch.testing.assert_close(one_step, flat[:, 0] + gamma * following - flat[:, 1])


def estimates(made, **options):
    """Advantages and returns of a rollout under random values and divergences; and these."""
    batch = batch_of(made)
    values, kl = torch.rand(2, len(batch.trained), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    spec = AdvantageSpec.from_config(config(advantage_estimator="ppo", **options))
    return *beside_values(batch, spec, kl, values), values, kl


@pytest.mark.parametrize("seed", range(4))
def test_the_reward_counts_at_the_last_trained_token_and_the_kl_at_each(seed):
    made = random_rollout(seed, num_groups=2)
    advantages, returns, values, kl = estimates(made, kl_coef=0.2, gamma=0.9, lambd=0.8)
    start = 0
    for one in made.samples:
        places = [start + place for place, trained in enumerate(one.loss_mask) if trained and one.reward is not None]
        rewards = [-0.2 * float(kl[place]) for place in places]
        if places:
            rewards[-1] += one.reward
        expected = gae(rewards, [float(values[place]) for place in places], 0.9, 0.8)
        assert advantages[places].tolist() == pytest.approx(expected, rel=1e-10, abs=1e-10)
        assert returns[places].tolist() == pytest.approx(
            [a + float(values[p]) for a, p in zip(expected, places, strict=True)], rel=1e-10
        )
        others = sorted(set(range(start, start + len(one.response_ids))) - set(places))
        assert not advantages[others].any() and not returns[others].any()
        start += len(one.response_ids)


def test_normalised_advantages_leave_the_returns_alone():
    plain, returns, _, _ = estimates(MADE)
    normal, same, _, _ = estimates(MADE, normalize_advantages=True)
    assert torch.equal(returns, same)
    torch.testing.assert_close(normal, whitened(plain, torch.tensor(with_returns(batch_of(MADE)).trained)))


@given(NUMBER, NUMBER, NUMBER, st.floats(0.01, 2))
@settings(max_examples=60, deadline=None)
def test_the_value_loss_is_the_larger_of_two_squares(value, before, goal, clip):
    assume(abs(abs(value - before) - clip) > 1e-6)  # on the edge rounding decides
    given_value = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    loss, clipped = clipped_value_loss(given_value, torch.tensor([before]).double(), torch.tensor([goal]).double(), clip)
    bounded = min(max(value, before - clip), before + clip)
    expected = max((value - goal) ** 2, (bounded - goal) ** 2) / 2
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-10, abs=1e-12)
    loss.sum().backward()
    if (value - goal) ** 2 != (bounded - goal) ** 2 or value == bounded:
        assert float(given_value.grad) == pytest.approx(0.0 if clipped else value - goal, abs=1e-12)


def value_model(seed=5):
    """A random decoder under a random head, in float64."""
    model = ValueModel(causal_lm(seed=seed).double())
    torch.nn.init.normal_(model.value_head.weight, generator=torch.Generator().manual_seed(seed))
    return model


@pytest.fixture
def ppo(monkeypatch):
    """PPO trainers on tiny float64 models."""
    monkeypatch.setattr("miles.policy.critic.load_value_model", lambda *_, **__: value_model())

    def build(made=MADE, *, num_steps=1, sizes=None, **options):
        chosen = config(**({"advantage_estimator": "ppo", "gamma": 0.95, "lambd": 0.9} | options))
        return Trainer(chosen, derived(len(made.samples), num_steps=num_steps, **(sizes or {})), model=policy_model())

    return build


def plain_values(model, one):
    """Value of the text before each response token, one sample at a time."""
    ids = torch.tensor([one.prompt_ids + one.response_ids])
    states = model.causal_lm.model(input_ids=ids).last_hidden_state[0, len(one.prompt_ids) - 1 : -1]
    return model.value_head(states)[:, 0]


def test_a_new_critic_values_everything_at_0_and_has_no_head_over_the_vocabulary():
    model = ValueModel(causal_lm("llama"))
    assert not any(parameter.any() for parameter in model.value_head.parameters())
    assert not any("lm_head" in name for name, _ in model.named_parameters())


def test_values_are_those_of_the_text_before_each_token(ppo):
    built, start = ppo(), 0
    values = built.critic.values(batch_of(MADE))
    for one in MADE.samples:
        expected = plain_values(built.critic.model, one).detach()
        counted = torch.tensor(one.loss_mask, dtype=torch.bool) & (one.reward is not None)
        torch.testing.assert_close(values[start : start + len(expected)], torch.where(counted, expected, 0.0))
        start += len(expected)


def gradients(model):
    """All of them in one vector."""
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_gradients_of_policy_and_critic_equal_the_plain_formulas(ppo):
    built, plain, policy = ppo(), value_model(), policy_model()
    made = built.prepare(batch_of(MADE))
    built.train_on(MADE, 0)
    value_loss, policy_loss, start = [], [], 0
    for one in MADE.samples:
        counted = [place for place, trained in enumerate(one.loss_mask) if trained]
        logits = policy.causal_lm(input_ids=torch.tensor([one.prompt_ids + one.response_ids])).logits[0]
        table = logits[len(one.prompt_ids) - 1 : -1].log_softmax(-1)
        for place in counted if one.reward is not None else ():
            value_loss.append((plain_values(plain, one)[place] - made.targets.returns[start + place]).square() / 2)
        for place in counted:
            policy_loss.append(-made.columns.advantages[start + place] * table[place, one.response_ids[place]])
        start += len(one.response_ids)
    torch.stack(value_loss).mean().backward()
    torch.stack(policy_loss).mean().backward()
    assert relative(gradients(built.critic.model), gradients(plain)) <= 1e-6
    assert relative(gradients(built.model), gradients(policy)) <= 1e-6


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("num_steps", [1, 2])
def test_steps_do_not_depend_on_the_cut(ppo, num_steps):
    built = [ppo(num_steps=num_steps, sizes=sizes) for sizes in ({}, {"micro_batch_size": 1}, {"max_tokens_per_gpu": 24})]
    reports = [one.train_on(MADE, 0).metrics for one in built]
    for one, report in zip(built[1:], reports[1:], strict=True):
        assert report == pytest.approx(reports[0], rel=1e-5, abs=1e-7)
        assert relative(weights(one.critic.model), weights(built[0].critic.model)) <= 1e-6


def test_the_policy_waits_while_the_critic_learns_alone(ppo):
    built = ppo(num_critic_only_steps=2, lr_warmup_iters=3)
    policy, critic = weights(built.model), weights(built.critic.model)
    for number in range(2):
        report = built.train_on(dataclasses.replace(MADE, rollout_id=number), 0)
        assert report.num_optimizer_steps == built.num_optimizer_steps == built.schedule.last_epoch == 0
        assert "train/loss" not in report.metrics and report.metrics["train/value_loss"] > 0
    assert torch.equal(weights(built.model), policy)
    assert not torch.equal(weights(built.critic.model), critic)
    for number in range(2, 4):
        built.train_on(dataclasses.replace(MADE, rollout_id=number), 0)
    assert built.num_optimizer_steps == 2
    assert not torch.equal(weights(built.model), policy)


def test_the_critic_has_a_rate_of_its_own(ppo):
    built = ppo(critic_lr=5e-3, critic_lr_warmup_iters=2, lr=1e-3)
    rates = [built.train_on(dataclasses.replace(MADE, rollout_id=k), 0).metrics["train/critic_lr"] for k in range(3)]
    assert rates == [0.0, 2.5e-3, 5e-3]
    assert ppo(lr=1e-3).train_on(MADE, 0).metrics["train/critic_lr"] == 1e-3


def test_the_critic_learns_what_answers_are_worth(ppo):
    built = ppo(lambd=1.0, gamma=1.0, lr=1e-2)
    fits = [built.train_on(dataclasses.replace(MADE, rollout_id=k), 0).metrics["train/explained_variance"] for k in range(30)]
    assert fits[-1] > 0.7 > fits[0]


def test_a_value_loss_that_is_no_number_stops_the_critic(ppo):
    built = ppo()
    built.critic.model.value_head.weight.register_hook(lambda grad: torch.full_like(grad, torch.nan))
    before = weights(built.critic.model)
    skipping = ppo(non_finite_steps="skip")
    skipping.critic.model.value_head.weight.register_hook(lambda grad: torch.full_like(grad, torch.nan))
    assert skipping.train_on(MADE, 0).metrics["train/critic_skipped_steps"] == 1
    with pytest.raises(NotFiniteError, match="rollout 3, step 0 of the critic: the loss is .* norm nan"):
        built.train_on(MADE, 0)
    assert torch.equal(weights(built.critic.model), before)


def test_a_policy_that_leaves_its_device_takes_the_critic_along(ppo):
    built = ppo()
    built.train_on(MADE, 0)
    move_trainer(built, "meta")
    moments = [value for state in built.critic.optimizer.state.values() for value in state.values() if value.dim()]
    assert moments and all(tensor.is_meta for tensor in (*moments, *built.critic.model.parameters()))


def test_a_checkpoint_goes_on_bit_for_bit(ppo, tmp_path):
    built, again = ppo(lr_decay_style="cosine"), ppo(lr_decay_style="cosine")
    built.train_on(MADE, 0)
    save_checkpoint(built, tmp_path / "kept", PRESET)
    load_checkpoint(again, tmp_path / "kept")
    assert again.train_on(MADE, 1).metrics == built.train_on(MADE, 1).metrics
    assert torch.equal(weights(again.critic.model), weights(built.critic.model))


def test_a_checkpoint_without_a_critic_is_refused_and_one_too_many_is_left_alone(ppo, tmp_path):
    with_critic, without = ppo(), Trainer(config(), derived(len(MADE.samples)), model=policy_model())
    save_checkpoint(with_critic, tmp_path / "with", PRESET)
    save_checkpoint(without, tmp_path / "without", PRESET)
    load_checkpoint(without, tmp_path / "with")
    with pytest.raises(CheckpointError, match="has no critic: .*--advantage-estimator ppo"):
        load_checkpoint(with_critic, tmp_path / "without")
