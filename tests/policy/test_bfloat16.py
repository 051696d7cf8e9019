"""A bfloat16 pass over float32 masters: near the float32 gradient, and no update is lost to rounding."""

import dataclasses

import pytest
import torch

from miles.policy.actor import PolicyWorker
from miles.policy.checkpoint import load_checkpoint, save_checkpoint
from miles.policy.process_group import group_of_one, leave
from miles.policy.sharding import whole
from miles.policy.trainer import Trainer
from tests.policy.builders import PRESET, batch_of, config, derived, policy_model, random_rollout, rollout, sample
from tests.policy.test_actor import process_settings  # noqa: F401

pytestmark = pytest.mark.unit
MADE = random_rollout(5)


@pytest.fixture
def half():
    """Trainers in bfloat16, in a process group of one."""
    yield lambda **options: trainer(dtype="bfloat16", **options)
    leave()


def trainer(**options):
    """A float32 model, trained as the options say; the group of an earlier trainer is left."""
    leave()
    chosen = config(**options)
    return Trainer(chosen, derived(len(MADE.samples)), group_of_one(chosen, "cpu"), policy_model(dtype=torch.float32))


def vector(built, of=lambda parameter: parameter.grad):
    """One vector of all parameters."""
    return torch.cat([whole(of(parameter).detach()).flatten() for parameter in built.model.parameters()])


@pytest.mark.parametrize("options", [{}, {"vocab_chunk_size": 7}, {"entropy_coef": 0.05}], ids=str)
def test_gradient_and_metrics_are_near_those_of_float32(half, options):
    exact, rounded = trainer(**options), half(**options)
    expected, made = exact.train_on(MADE, 0).metrics, rounded.train_on(MADE, 0).metrics
    assert made == pytest.approx(expected, rel=2e-2, abs=2e-2)
    difference = vector(rounded) - vector(exact)
    assert 0 < difference.norm() <= 0.1 * vector(exact).norm()


def test_log_probs_masters_gradients_and_moments_are_float32(half):
    built, batch = half(entropy_coef=0.01), batch_of(MADE)
    scores = built.model(built.prepare(batch).steps[0].parts[0], 1.0, True)
    assert {scores.logprobs.dtype, scores.entropy.dtype} == {torch.float32}
    rounded = scores.logprobs.to(torch.bfloat16).float()
    assert not torch.equal(rounded, scores.logprobs), "the softmax was taken in bfloat16"
    built.train_on(MADE, 0)
    held = [tensor for state in built.optimizer.state.values() for tensor in state.values()]
    assert {tensor.dtype for parameter in built.model.parameters() for tensor in (parameter, parameter.grad, *held)} == {
        torch.float32
    }


def test_masters_keep_updates_that_bfloat16_would_lose(half):
    built = half(lr=1e-6)
    before = vector(built, lambda parameter: parameter.clone())
    for number in range(4):
        built.train_on(dataclasses.replace(MADE, rollout_id=number), 0)
    moved = vector(built, lambda parameter: parameter) - before
    large = before.abs() > 0.1
    seen = (before + moved)[large].bfloat16() != before[large].bfloat16()
    assert seen.float().mean() < 0.05, "the updates are below a bfloat16's step"
    assert moved[large].abs().median() > 1e-6


def test_a_checkpoint_goes_on_bit_for_bit(half, tmp_path):
    built = half()
    built.train_on(MADE, 0)
    save_checkpoint(built, tmp_path / "kept", PRESET)
    expected = built.train_on(MADE, 1).metrics, vector(built, lambda parameter: parameter)
    again = half()
    load_checkpoint(again, tmp_path / "kept")
    assert again.train_on(MADE, 1).metrics == expected[0]
    assert torch.equal(vector(again, lambda parameter: parameter), expected[1])


def test_masters_in_host_memory_take_the_same_step(half):
    """The layout that --optimizer-cpu-offload asks for; on a CPU both memories are the same one."""
    plain = half()
    expected = plain.train_on(MADE, 0).metrics, vector(plain, lambda parameter: parameter)
    offloaded = half(optimizer_cpu_offload=True)
    assert offloaded.train_on(MADE, 0).metrics == expected[0]
    assert torch.equal(vector(offloaded, lambda parameter: parameter), expected[1])
    assert offloaded.model.runs_on == torch.device("cpu")


def test_a_worker_of_one_rank_makes_a_group_of_its_own(half):
    worker = PolicyWorker(config(dtype="bfloat16"), derived(4))
    worker.start()
    groups = [[sample(0, i, (1, 5, 6), (7, 8 + i, 2), reward=float(i % 2)) for i in range(4)]]
    report = worker.train_on(batch_of(rollout(groups)))
    assert report.metrics["train/grad_norm"] > 0
