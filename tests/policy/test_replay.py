"""A step that fails on its numbers is kept, and a replay names the samples it failed on."""

import asyncio
import math
import pickle

import pytest
import torch
from typer.testing import CliRunner

from miles.config.options.run import RunOptions
from miles.config.registry import all_options
from miles.errors import CheckpointError, NotFiniteError, PolicyError
from miles.policy.actor import PolicyWorker
from miles.policy.client import FailureFolder, PolicyClient
from miles.policy.collate import nothing_to_predict
from miles.policy.failure import read_failure, write_failure
from miles.policy.memory import naming_micro_batch
from miles.policy.process_group import leave
from miles.policy.replay import replay
from miles_cli.app import app
from tests.policy.builders import PRESET, batch_of, config, derived, rollout, sample
from tests.policy.test_actor import Handle, process_settings, ranks_of  # noqa: F401

pytestmark = pytest.mark.unit


@pytest.fixture(params=["float32", "bfloat16"])
def kept(tmp_path, request):
    """The folder of a step of two groups, of which the second has a reward beyond float32."""
    chosen = config(grpo_std_normalization=False, dtype=request.param)
    worker = PolicyWorker(chosen, derived(4))
    rewards = [[0.0, 1.0], [0.0, 1e300]]
    groups = [[sample(g, i, (1, 5), (7, 8 + i), reward=reward) for i, reward in enumerate(row)] for g, row in enumerate(rewards)]

    async def run():
        client = PolicyClient(ranks_of(Handle(worker)), FailureFolder(tmp_path, chosen, derived(4)))
        await client.info()
        with pytest.raises(NotFiniteError) as caught:
            await client.train_on(rollout(groups, 12), 0)
        return str(caught.value)

    words = asyncio.run(run())
    assert f"miles replay {tmp_path}/rollout-000012" in words
    assert "rollout 12 (policy version 0), optimiser step 0: the loss is" in words
    leave()
    yield tmp_path / "rollout-000012"
    leave()


def test_the_replay_names_the_samples(kept):
    reports = list(replay(kept))
    assert sorted(report.sample for report in reports if not report.is_finite) == [2, 3]
    assert len(reports) == 4
    printed = CliRunner().invoke(app, ["replay", str(kept)])
    assert printed.exit_code == 1
    assert "2 of 4 samples" in printed.output
    assert "sample 3 (group 1, reward 1e+300, 2 trained tokens)" in printed.output


async def test_a_reward_that_is_no_number_is_kept_and_named(tmp_path):
    chosen = config()
    client = PolicyClient(ranks_of(Handle(PolicyWorker(chosen, derived(4)))), FailureFolder(tmp_path, chosen, derived(4)))
    groups = [[sample(g, i, (1, 5), (7, 8 + i), reward=[1.0, math.nan][g * i]) for i in range(2)] for g in range(2)]
    await client.info()
    try:
        with pytest.raises(NotFiniteError, match=r"rollout 3, group 1, sample 1: the reward is nan\. .*`miles replay .*"):
            await client.train_on(rollout(groups, 3), 0)
    finally:
        leave()
    printed = CliRunner().invoke(app, ["replay", str(tmp_path / "rollout-000003")])
    leave()
    assert printed.exit_code == 1
    assert "sample 3 (group 1, reward nan" in printed.output


def test_a_kept_batch_is_the_batch(tmp_path):
    batch = batch_of(rollout([[sample(0, 0, (1, 2), (3,))]], 4))
    write_failure(tmp_path, batch, config(lr=0.5), derived(1))
    read, again, sizes = read_failure(tmp_path)
    assert pickle.dumps(read) == pickle.dumps(batch)
    assert (again, sizes) == (config(lr=0.5), derived(1))
    assert (PRESET / "config.json").is_file()


def test_secrets_are_not_kept(tmp_path):
    secret = [option for option in all_options() if option.meta.secret]
    assert {option.section for option in secret} == {"run"}
    chosen = config().model_copy(update={"run": RunOptions(use_wandb=True, **{option.name: "s3cr3t" for option in secret})})
    write_failure(tmp_path, batch_of(rollout([[sample(0, 0, (1, 2), (3,))]], 4)), chosen, derived(1))
    assert not any(b"s3cr3t" in path.read_bytes() for path in tmp_path.iterdir())
    assert read_failure(tmp_path)[1].run.use_wandb


def test_a_folder_without_a_step_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="holds no step"):
        list(replay(tmp_path))


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
)
def test_running_out_of_memory_names_the_micro_batch_and_what_lowers_it(error):
    words = r"1 rows × 1 tokens .*--max-tokens-per-gpu .*--gradient-checkpointing"
    with pytest.raises(PolicyError, match=words), naming_micro_batch(nothing_to_predict()):
        raise error


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="shapes"), naming_micro_batch(nothing_to_predict()):
        raise RuntimeError("shapes")
