"""A critic on ranks of its own does what one on the policy's ranks does, beside it: same numbers, checkpoints, failures."""

import asyncio
import dataclasses

import pytest
import torch

from miles.errors import CheckpointError, CriticNotFiniteError, NotFiniteError
from miles.policy.actor import PolicyWorker
from miles.policy.checkpoint import damage_of
from miles.policy.client import FailureFolder, PolicyClient
from miles.policy.critic_actor import CriticWorker
from miles.policy.critic_client import train_beside
from miles.policy.failure import POLICY, read_known
from miles.policy.known import Known
from miles.policy.replay import replay
from miles.types import StepReport
from tests.policy.builders import batch_of, causal_lm, config, derived, random_rollout
from tests.policy.test_actor import Dead, Handle, process_settings, ranks_of  # noqa: F401

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]
ROLLOUTS = [dataclasses.replace(random_rollout(seed, num_groups=2), rollout_id=place) for place, seed in enumerate((3, 4, 5))]
PPO = {"advantage_estimator": "ppo", "gamma": 0.95, "lambd": 0.9, "lr": 1e-3, "deterministic": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny model."""
    folder = tmp_path_factory.mktemp("model")
    causal_lm().save_pretrained(folder)
    return folder


@pytest.fixture
def policy(model, tmp_path):
    """A policy on one rank, with its critic there or on a rank of its own."""

    def start(*, apart, num_steps=1, **options):
        chosen, own = config(model, **(PPO | options)), int(apart)
        sizes = dataclasses.replace(derived(len(ROLLOUTS[0].samples), num_steps=num_steps), num_critic_ranks=own)
        critic = ranks_of(Handle(CriticWorker(chosen, sizes)), who="the critic") if apart else None
        ranks = ranks_of(Handle(PolicyWorker(chosen, sizes)))
        return PolicyClient(ranks, FailureFolder(tmp_path / "failed", chosen, sizes), critic)

    return start


def worker(client, group=0):
    """What is behind a handle."""
    return client.groups[group].actors[0].target


async def learned(client, rollouts):
    """The reports on rollouts."""
    await client.info()
    return [await client.train_on(made, made.rollout_id) for made in rollouts]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_steps": 2, "num_critic_only_steps": 1, "critic_lr": 5e-4, "value_clip": 0.05},
        {"kl_coef": 0.1, "use_kl_loss": True},
    ],
    ids=["plain", "two steps after a warm-up", "compared with a reference"],
)
async def test_it_gives_the_same_bits(policy, options):
    shared, apart = policy(apart=False, **options), policy(apart=True, **options)
    reports = await learned(apart, ROLLOUTS)
    assert reports == await learned(shared, ROLLOUTS)
    assert {"train/value_loss", "train/critic_lr", "train/explained_variance"} <= reports[-1].metrics.keys()
    here, there = worker(shared)._trainer.critic.model, worker(apart, 1)._critic.model
    assert worker(apart)._trainer.critic is None
    assert all(torch.equal(one, other) for one, other in zip(here.parameters(), there.parameters(), strict=True))


@pytest.mark.parametrize(("before", "after", "in_background"), [(True, True, True), (True, False, False), (False, True, True)])
async def test_a_checkpoint_goes_on_wherever_the_critic_was(policy, tmp_path, before, after, in_background):
    first, second = (policy(apart=apart, critic_lr_warmup_iters=3) for apart in (before, after))
    await learned(first, ROLLOUTS[:1])
    kept = tmp_path / "checkpoints/kept"
    if in_background:
        await first.begin_save(kept)
        rest = await learned(first, ROLLOUTS[1:])
        await first.finish_save()
    else:
        await first.save(kept)
        rest = await learned(first, ROLLOUTS[1:])
    assert [path.name for path in kept.parent.iterdir()] == ["kept"]
    assert (kept / "critic").is_dir() == before
    assert not damage_of(kept)
    await second.info()
    await second.load(kept)
    assert await learned(second, ROLLOUTS[1:]) == rest


async def test_what_another_run_learned_is_begun_with_but_not_its_schedule(policy, tmp_path):
    first, second = policy(apart=True, critic_lr_warmup_iters=4), policy(apart=True, critic_lr_warmup_iters=4)
    await learned(first, ROLLOUTS[:2])
    await first.save(tmp_path / "kept")
    await second.info()
    await second.load(tmp_path / "kept", anew=True)
    weights = [dict(worker(client, 1)._critic.model.named_parameters()) for client in (first, second)]
    assert all(torch.equal(weights[1][name], tensor) for name, tensor in weights[0].items())
    assert (await learned(second, ROLLOUTS[:1]))[0].metrics["train/critic_lr"] == 0


async def test_a_checkpoint_without_a_critic_is_refused(policy, model, tmp_path):
    plain = PolicyClient(ranks_of(Handle(PolicyWorker(config(model), derived(4)))))
    await plain.info()
    await plain.save(tmp_path / "kept")
    client = policy(apart=True)
    await client.info()
    with pytest.raises(CheckpointError, match="has no critic: .*--advantage-estimator ppo"):
        await client.load(tmp_path / "kept")


async def test_what_the_critic_wrote_is_part_of_the_checkpoint_or_gone(policy, tmp_path, monkeypatch):
    client, folder = policy(apart=True), tmp_path / "checkpoints"
    await client.info()
    await client.save(folder / "kept")
    state = folder / "kept/critic/state.pt"
    state.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="critic/state.pt is damaged"):
        await client.load(folder / "kept")
    monkeypatch.setattr("miles.policy.checkpoint.write_hf", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(CheckpointError, match="disk full"):
        await client.save(folder / "later")
    assert [path.name for path in folder.iterdir()] == ["kept"]


@pytest.mark.parametrize("apart", [True, False])
async def test_values_that_are_no_number_stop_the_run_and_batch_and_policy_are_kept_as_said(policy, tmp_path, apart):
    client = policy(apart=apart)
    await client.info()
    head = (worker(client, 1)._critic if apart else worker(client)._trainer.critic).model.value_head
    head.weight.register_hook(lambda grad: torch.full_like(grad, torch.nan))
    folder = tmp_path / "failed/rollout-000000"
    words = f"rollout 0, step 0 of the critic: .* the policy as it is after its own steps are kept; `miles replay {folder}`"
    with pytest.raises(CriticNotFiniteError, match=words):
        await client.train_on(ROLLOUTS[0], 0)
    assert not head.weight.any(), "the step was not taken"
    assert all(report.is_finite for report in replay(folder))
    await client.load(folder / POLICY)
    assert (await client.info())["num_optimizer_steps"] == 1


@pytest.mark.parametrize("own", [None, NotFiniteError("the policy's")])
async def test_a_critic_that_fails_first_lets_the_policy_end_and_say_what_happened_to_it(own):
    critic_failed, policy_ended = asyncio.Event(), asyncio.Event()

    class Policy:
        async def all(self, *_):
            await critic_failed.wait()
            for _ in range(10):  # turns of the loop, in which nobody else has anything left to do
                await asyncio.sleep(0)
            policy_ended.set()
            if own is not None:
                raise own

    class Critic:
        async def all(self, *_):
            critic_failed.set()
            raise CriticNotFiniteError("the critic's")

    with pytest.raises(NotFiniteError) as caught:
        await train_beside(Policy(), Critic(), batch_of(ROLLOUTS[0]), Known())
    assert policy_ended.is_set()
    assert str(caught.value) == ("the critic's" if own is None else "the policy's")


async def test_a_replay_takes_the_step_under_the_values_it_was_taken_with(policy, tmp_path):
    client = policy(apart=True)
    whole = await learned(policy(apart=False), ROLLOUTS)
    await learned(client, ROLLOUTS[:2])
    known = Known(values=worker(client, 1).values(batch_of(ROLLOUTS[2])))
    next(iter(worker(client)._trainer.model.parameters())).register_hook(lambda grad: torch.full_like(grad, torch.inf))
    with pytest.raises(NotFiniteError, match="the policy before it are kept; .* takes the step again"):
        await client.train_on(ROLLOUTS[2], 2)
    folder = tmp_path / "failed/rollout-000002"
    assert read_known(folder).values.tolist() == known.values.tolist()
    moved = worker(client, 1).values(batch_of(ROLLOUTS[2]))
    assert moved.tolist() != known.values.tolist(), "the critic's step goes on beside"
    assert sum(report.loss for report in replay(folder)) == pytest.approx(whole[2].metrics["train/loss"], rel=1e-4)


async def test_a_reward_that_is_no_number_is_kept_before_anybody_values_it(policy, tmp_path):
    client = policy(apart=True)
    await learned(client, ROLLOUTS[:1])
    first, *others = ROLLOUTS[1].groups
    judged = [dataclasses.replace(one, reward=float("nan")) for one in first.samples]
    broken = dataclasses.replace(ROLLOUTS[1], groups=(dataclasses.replace(first, samples=tuple(judged)), *others))
    with pytest.raises(NotFiniteError, match="the reward is nan"):
        await client.train_on(broken, 1)
    folder = tmp_path / "failed/rollout-000001"
    assert read_known(folder) is None
    reports = list(replay(folder))
    assert {report.group for report in reports if not report.is_finite} == {0}
    assert any(report.is_finite for report in reports)


class Meeting:
    """Ranks whose calls end once the other's have begun, too."""

    def __init__(self, barrier, answers):
        self._barrier, self._answers = barrier, answers

    def __getattr__(self, name):
        async def call(*_):
            if name in self._answers:
                await asyncio.wait_for(self._barrier.wait(), 5)
            return self._answers.get(name)

        return type("Method", (), {"remote": lambda _, *given: asyncio.ensure_future(call(*given))})()


async def test_policy_and_critic_work_at_the_same_time():
    barrier = asyncio.Barrier(2)
    policy = Meeting(barrier, {"known": Known(), "train_on": StepReport({"train/loss": 1.0}, 1)})
    critic = Meeting(barrier, {"values": torch.zeros(1).numpy(), "train_on": {"train/value_loss": 2.0}})
    client = PolicyClient(ranks_of(policy), None, ranks_of(critic, who="the critic"))
    report = await client.train_on(ROLLOUTS[0], 0)
    assert report == StepReport({"train/loss": 1.0, "train/value_loss": 2.0}, 1)


async def test_a_dead_rank_of_the_critic_is_named(policy, monkeypatch):
    monkeypatch.setattr("miles.policy.rank_calls.OWN_WORDS_SECONDS", 0.01)
    client = policy(apart=True)
    client.groups[1].actors.append(Dead(None))
    with pytest.raises(Exception, match="rank 1 of the critic's process ended while the run went on"):
        await asyncio.wait_for(client.groups[1].watch(), 5)
    assert list(client.processes) == ["rank-0", "critic-0", "critic-1"]
