"""What the command line refuses, Python refuses on construction; the rest it takes."""

import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from miles.config.commands import TrainAsyncConfig, TrainConfig
from miles.config.options.algorithm import AlgorithmOptions, AsyncAlgorithmOptions
from miles.config.options.cluster import ClusterOptions
from miles.config.options.data import DataOptions
from miles.config.options.engine import EngineOptions
from miles.config.options.evaluation import EvalOptions
from miles.config.options.model import ModelOptions
from miles.config.options.optimizer import OptimizerOptions
from miles.config.options.placement import Colocated, Disaggregated
from miles.config.options.reward import RewardOptions
from miles.config.options.rollout import FullyAsync, OneStepOff, SyncRollout
from miles.config.options.run import RunOptions
from miles.config.options.sampling import SamplingOptions
from miles.errors import ConfigError

pytestmark = pytest.mark.unit
MODEL = ModelOptions(hf_checkpoint=Path("model"))


def data(**more):
    return DataOptions(**({"prompt_data": Path("prompts.jsonl"), "num_rollout": 3} | more))


def train(**sections):
    return TrainConfig(**({"model": MODEL, "data": data(), "reward": RewardOptions(rm_type="exact")} | sections))


def train_async(**sections):
    return TrainAsyncConfig(**({"model": MODEL, "data": data(), "reward": RewardOptions(rm_type="exact")} | sections))


def test_what_can_be_run_can_be_built():
    assert isinstance(train().rollout, SyncRollout)
    assert isinstance(train_async().rollout, OneStepOff)
    config = train_async(rollout=FullyAsync(max_weight_staleness=2))
    assert config.algorithm.off_policy_correction == "tis"
    assert train().algorithm.off_policy_correction == "none"
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    "build",
    [
        lambda: train(rollout=FullyAsync()),
        lambda: train(rollout=OneStepOff()),
        lambda: train_async(rollout=SyncRollout()),
        lambda: train_async(placement=Colocated()),
        lambda: FullyAsync(rollout_function_path="a.b"),
        lambda: FullyAsync(rollout_api="function"),
        lambda: FullyAsync(fully_async=False),
        lambda: FullyAsync(pause_generation_mode="abort"),
        lambda: OneStepOff(max_weight_staleness=2),
        lambda: FullyAsync(max_weight_staleness=-1),
        lambda: FullyAsync(update_weights_interval=0),
        lambda: data(n_samples_per_prompt=0),
        lambda: SamplingOptions(rollout_temperature=0),
        lambda: OptimizerOptions(lr=float("nan")),
        lambda: OptimizerOptions(learning_rate=1),
        lambda: train(lr=1),
        lambda: TrainConfig(model=MODEL),
    ],
)
def test_what_cannot_be_written(build):
    with pytest.raises(ValidationError):
        build()


@pytest.mark.parametrize(
    ("build", "option"),
    [
        (lambda: train(placement=Colocated(rollout_num_gpus_per_engine=2)), "rollout_num_gpus_per_engine"),
        (lambda: train(placement=Colocated(), engine=EngineOptions(rollout_external_engine_addrs=("a:1",))), "colocate"),
        (
            lambda: train(
                placement=Disaggregated(rollout_num_gpus=2, rollout_num_gpus_per_engine=2),
                engine=EngineOptions(check_weight_update=True),
            ),
            "check_weight_update",
        ),
        (lambda: train(rollout=SyncRollout(rollout_api="function")), "rollout_api"),
        (lambda: train(rollout=SyncRollout(over_sampling_batch_size=1)), "over_sampling_batch_size"),
        (lambda: train(rollout=SyncRollout(partial_rollout=True)), "partial_rollout"),
        (lambda: train(data=data(global_batch_size=7)), "global_batch_size"),
        (lambda: train(data=data(num_epoch=1)), "num_rollout"),
        (lambda: train(data=data(num_rollout=None)), "num_rollout"),
        (lambda: train(reward=RewardOptions()), "rm_type"),
        (lambda: train(reward=RewardOptions(rm_type="exact", reward_key="a")), "reward_key"),
        (lambda: train(reward=RewardOptions(rm_type="exact", custom_rm_path="a.b")), "rm_type"),
        (lambda: train(algorithm=AlgorithmOptions(tis_clip=2.0)), "tis_clip"),
        (lambda: train_async(algorithm=AsyncAlgorithmOptions(tis_clip_low=3)), "tis_clip_low"),
        (lambda: train_async(sampling=SamplingOptions(rollout_top_p=0.9)), "rollout_top_p"),
        (lambda: train(sampling=SamplingOptions(rollout_top_k=0)), "rollout_top_k"),
        (lambda: train(optimizer=OptimizerOptions(min_lr=1, lr_decay_style="cosine")), "min_lr"),
        (lambda: train(optimizer=OptimizerOptions(micro_batch_size=1, max_tokens_per_gpu=1)), "micro_batch_size"),
        (lambda: train(evaluation=EvalOptions(eval_interval=3)), "eval_interval"),
        (lambda: train(run=RunOptions(wandb_mode="offline")), "wandb_mode"),
        (lambda: train(placement=Disaggregated(actor_num_gpus_per_replica=2)), "actor_num_gpus_per_replica"),
        (lambda: train_async(rollout=FullyAsync(async_max_concurrent_samples=3)), "async_max_concurrent_samples"),
    ],
)
def test_what_contradicts_itself(build, option):
    with pytest.raises(ConfigError) as caught:
        build()
    assert [problem.option for problem in caught.value.problems] == [option]
    assert "()" not in str(caught.value)


def test_python_reports_everything_at_once_too():
    with pytest.raises(ConfigError) as caught:
        train(reward=RewardOptions(), data=data(global_batch_size=7), sampling=SamplingOptions(rollout_top_k=0))
    assert {problem.option for problem in caught.value.problems} == {"rm_type", "global_batch_size", "rollout_top_k"}


def test_option_sets_are_frozen():
    with pytest.raises(ValidationError):
        ClusterOptions().device = "cpu"
