"""Assembles the rollout side of a run from its configuration.

source ─┐
ledger ─┼─► rollout function ─► groups        rewards ─► generator ─► (training and evaluation)
engine ─┘
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from miles.clock import Clock
from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.config.dotted import load_dotted
from miles.config.options.reward import RewardOptions
from miles.engines.wire import EngineApi, SamplingParams
from miles.errors import ConfigError, Problem
from miles.rollout.contracts import Prompts, RolloutFn, RolloutFnInput
from miles.rollout.data_source import SourcedPrompts
from miles.rollout.function_api import FunctionRolloutFn
from miles.rollout.generate import GenerateFn, GenerateSettings, SingleTurnGroupGenerator
from miles.rollout.ledger import Ledger
from miles.rollout.multi_turn import MultiTurn
from miles.rollout.number_reward import NumberReward
from miles.rollout.prompts import PromptFormat, PromptSource, Tokenizer
from miles.rollout.reward_workers import RewardWorkers
from miles.rollout.rewards import AsyncJudge, CustomReward, ExactReward, Rewards, is_async


@dataclass(frozen=True, slots=True)
class RolloutSide:
    """Everything that makes rollouts; ``fn`` is what the loop calls."""

    fn: RolloutFn
    ledger: Ledger
    source: Prompts
    rewards: Rewards

    async def close(self) -> None:
        """End every task and process of the rollout side."""
        await self.fn.close()
        await self.rewards.close()


def build_rollout(
    config: AnyConfig,
    derived: Derived,
    tokenizer: Tokenizer,
    engine: EngineApi,
    clock: Clock,
    say: Callable[[str], None],
    *,
    first_rollout_id: int = 0,
    weight_version: int = 0,
    ledger: Ledger | None = None,
    source: Prompts | None = None,
) -> RolloutSide:
    """The rollout side of a run; ``ledger`` is that of a resumed run, ``source`` the prompts if they are read already.

    Raises:
        DataError: the prompt file cannot be used.
        ConfigError: there is no reward, or a dotted path leads nowhere.
    """
    ledger = Ledger() if ledger is None else ledger
    source = training_prompts(config, derived, tokenizer) if source is None else source
    rewards = build_rewards(config.reward)
    generator = train_generator(config, derived, tokenizer, engine, rewards)
    given = RolloutFnInput(
        config,
        derived,
        source,
        ledger,
        generator,
        clock,
        first_rollout_id,
        weight_version,
        say,
        engines=engine,
        room=engine,
        interrupt=generator.interrupt,
    )
    return RolloutSide(rollout_function(given), ledger, source, rewards)


def rollout_function(given: RolloutFnInput) -> RolloutFn:
    """The rollout function that the run resolved to, built; finished groups it would not use go back to waiting."""
    build = load_dotted(given.derived.rollout_function_path, "rollout_function_path", kind="rollout")
    if given.config.rollout.rollout_api == "function":
        build = partial(FunctionRolloutFn, build)
    if not getattr(build, "takes_finished_groups", False):
        for group in given.ledger.finished():
            given.ledger.put_back(group.index)
    built: RolloutFn = build(given)
    return built


def training_prompts(config: AnyConfig, derived: Derived, tokenizer: Tokenizer) -> Prompts:
    """The prompts of the prompt file, or of the user's data source.

    Raises:
        DataError: some lines cannot be used, or the source cannot be built.
    """
    path, file = config.data.data_source_path, config.data.prompt_data
    if path is not None:
        build = partial(load_dotted(path, "data_source_path", kind="data_source"), config)
        return SourcedPrompts(path, build, tokenizer, PromptFormat.of(config.data, derived.max_prompt_len))
    if file is None:
        raise ConfigError([Problem("prompt_data", "", "", "is not set", "Pass --prompt-data or --data-source-path")])
    return prompt_source(config, derived, tokenizer, file, shuffles=config.data.rollout_shuffle)


def prompt_source(
    config: AnyConfig, derived: Derived, tokenizer: Tokenizer, path: Path, *, shuffles: bool = False
) -> PromptSource:
    """The prompts of a file, for training or evaluation (which is not shuffled).

    Raises:
        DataError: some lines cannot be used.
    """
    line_format = PromptFormat.of(config.data, derived.max_prompt_len)
    return PromptSource.from_jsonl(path, tokenizer, line_format, config.sampling.rollout_seed if shuffles else None)


def train_generator(
    config: AnyConfig, derived: Derived, tokenizer: Tokenizer, engine: EngineApi, rewards: Rewards
) -> SingleTurnGroupGenerator:
    """Samples training groups."""
    sampling = config.sampling
    length, temperature = config.data.rollout_max_response_len, sampling.rollout_temperature
    params = sampling_params(config, length, temperature, sampling.rollout_top_p, sampling.rollout_top_k)
    settings = generate_settings(config, derived, params, config.data.n_samples_per_prompt, "train")
    return SingleTurnGroupGenerator(engine, tokenizer, rewards, settings, generate_function(config, tokenizer))


def eval_generator(
    config: AnyConfig, derived: Derived, tokenizer: Tokenizer, engine: EngineApi, rewards: Rewards
) -> SingleTurnGroupGenerator:
    """Samples held-out groups, with the evaluation's parameters."""
    length, temperature = derived.eval_max_response_len, derived.eval_temperature
    params = sampling_params(config, length, temperature, derived.eval_top_p, derived.eval_top_k)
    settings = generate_settings(config, derived, params, config.evaluation.n_samples_per_eval_prompt, "eval")
    return SingleTurnGroupGenerator(engine, tokenizer, rewards, settings, generate_function(config, tokenizer))


def sampling_params(config: AnyConfig, max_new_tokens: int, temperature: float, top_p: float, top_k: int) -> SamplingParams:
    """What differs between training and evaluation, with the stops that do not."""
    stops = config.sampling.rollout_stop, config.sampling.rollout_stop_token_ids
    return SamplingParams(max_new_tokens, temperature, top_p, top_k, *stops)


def generate_settings(
    config: AnyConfig, derived: Derived, sampling: SamplingParams, num_samples: int, purpose: str
) -> GenerateSettings:
    """What training and evaluation share, with what they do not."""
    return GenerateSettings(
        sampling=sampling,
        num_samples=num_samples,
        max_context_len=derived.max_context_len,
        timeout_seconds=config.rollout.rollout_timeout_seconds,
        seed=config.sampling.rollout_seed,
        purpose=purpose,
        granularity=config.rollout.rollout_submission_granularity,
    )


def generate_function(config: AnyConfig, tokenizer: Tokenizer) -> GenerateFn | None:
    """The user's generate function, or the turns with the user's environment; None for answers of one turn."""
    options = config.rollout
    if options.environment_path is not None:
        environment = load_dotted(options.environment_path, "environment_path", kind="environment")
        return MultiTurn(environment, tokenizer, options.max_turns, config.data.apply_chat_template)
    path = options.custom_generate_function_path
    return load_dotted(path, "custom_generate_function_path", kind="generate") if path else None


def build_rewards(options: RewardOptions) -> Rewards:
    """The built-in reward, or the user's function behind its time limit.

    Raises:
        ConfigError: neither is given.
    """
    path = options.custom_rm_path
    if path is None and options.rm_type is None:
        why, remedy = "no reward is given", "Pass --rm-type, or your own function with --custom-rm-path"
        raise ConfigError([Problem("rm_type", "", "", why, remedy)])
    if path is None:
        return NumberReward() if options.rm_type == "number" else ExactReward()
    function, seconds = load_dotted(path, "custom_rm_path", kind="reward"), options.reward_timeout_seconds
    judge = AsyncJudge(function, seconds) if is_async(function) else RewardWorkers(path, options.reward_num_workers, seconds)
    return CustomReward(judge, reward_key=options.reward_key, per_group=options.group_rm)
