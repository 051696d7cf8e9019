"""The three roots: what ``miles train``, ``miles train-async`` and ``miles sft`` may be told.

    TrainConfig       rollout: SyncRollout                placement: Disaggregated | Colocated
    TrainAsyncConfig  rollout: OneStepOff | FullyAsync    placement: Disaggregated
    SftConfig         examples instead of rollouts, ranks instead of a placement

What cannot be combined cannot be written, in Python as on the command line.
"""

from typing import Any, Self

from pydantic import Field, model_validator

from miles.config.options.algorithm import AlgorithmOptions, AsyncAlgorithmOptions
from miles.config.options.base import OptionSet
from miles.config.options.cluster import ClusterOptions
from miles.config.options.critic import CriticOptions
from miles.config.options.data import DataOptions
from miles.config.options.engine import EngineOptions
from miles.config.options.evaluation import EvalOptions, HeldOutOptions
from miles.config.options.lora import LoraOptions, PublishedLoraOptions
from miles.config.options.model import ModelOptions
from miles.config.options.optimizer import OptimizerOptions
from miles.config.options.placement import Colocated, Disaggregated, RankOptions
from miles.config.options.reward import RewardOptions
from miles.config.options.rollout import FullyAsync, OneStepOff, SyncRollout
from miles.config.options.run import RunOptions
from miles.config.options.sampling import SamplingOptions
from miles.config.options.sft import ExampleOptions, SftModelOptions


def lazily(option_set: type[OptionSet]) -> Any:
    """A default that is built when it is asked for, so that ``--help`` builds no validator."""
    return Field(default_factory=option_set)


class CheckedConfig(OptionSet):
    """A root: what it holds is checked as a whole."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuse contradictions here too, so that Python and the command line agree."""
        from miles.config.checks import check_config

        check_config(next(name for name, root in COMMANDS.items() if isinstance(self, root)), self)
        return self


class BaseConfig(CheckedConfig):
    """The option sets that both commands with rollouts share."""

    model: ModelOptions
    lora: PublishedLoraOptions = lazily(PublishedLoraOptions)
    data: DataOptions
    sampling: SamplingOptions = lazily(SamplingOptions)
    reward: RewardOptions = lazily(RewardOptions)
    critic: CriticOptions = lazily(CriticOptions)
    optimizer: OptimizerOptions = lazily(OptimizerOptions)
    cluster: ClusterOptions = lazily(ClusterOptions)
    engine: EngineOptions = lazily(EngineOptions)
    evaluation: EvalOptions = lazily(EvalOptions)
    run: RunOptions = lazily(RunOptions)


class TrainConfig(BaseConfig):
    """``miles train``: rollout, step, publish, in turn."""

    rollout: SyncRollout = lazily(SyncRollout)
    algorithm: AlgorithmOptions = lazily(AlgorithmOptions)
    placement: Disaggregated | Colocated = lazily(Disaggregated)


class TrainAsyncConfig(BaseConfig):
    """``miles train-async``: rollouts and steps overlap."""

    rollout: OneStepOff | FullyAsync = lazily(OneStepOff)
    algorithm: AsyncAlgorithmOptions = lazily(AsyncAlgorithmOptions)
    placement: Disaggregated = lazily(Disaggregated)


class SftConfig(CheckedConfig):
    """``miles sft``: steps on answers that are given."""

    model: SftModelOptions
    lora: LoraOptions = lazily(LoraOptions)
    data: ExampleOptions
    optimizer: OptimizerOptions = lazily(OptimizerOptions)
    placement: RankOptions = lazily(RankOptions)
    cluster: ClusterOptions = lazily(ClusterOptions)
    evaluation: HeldOutOptions = lazily(HeldOutOptions)
    run: RunOptions = lazily(RunOptions)


AnyConfig = TrainConfig | TrainAsyncConfig
WITH_ROLLOUTS: dict[str, type[TrainConfig] | type[TrainAsyncConfig]] = {"train": TrainConfig, "train-async": TrainAsyncConfig}
COMMANDS: dict[str, type[TrainConfig] | type[TrainAsyncConfig] | type[SftConfig]] = {**WITH_ROLLOUTS, "sft": SftConfig}
