"""Values that follow from the options, each by one stated rule; shown as rows of their own with their arithmetic.

view + facts ──derive──► Derived
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from miles.config.commands import AnyConfig, SftConfig
from miles.config.facts import Facts
from miles.config.options.algorithm import Aggregation, Estimator
from miles.config.options.rollout import FullyAsync, SyncRollout
from miles.errors import ConfigError, Problem

Schedule = Literal["sync", "one_step_off", "fully_async", "sft"]
TransferMode = Literal["disk", "tensor", "broadcast"]
Packing = Literal["block-mask", "varlen"]
INFERENCE_ROLLOUT = "miles.rollout.inference:InferenceRolloutFn"
FULLY_ASYNC_ROLLOUT = "miles.rollout.fully_async:FullyAsyncRolloutFn"
EVALUATE = "miles.loops.evaluate:evaluate"
LEAST_TOKENS_PER_FORWARD = 4096
NO_LIMIT = "is not set, and the model's config.json names no limit"


@dataclass(frozen=True, slots=True)
class Derived:
    """What the run reads where an option may be left open; never contradicts a value the user gave.

    Of ``miles sft``, whose rollouts are its steps and whose prompts are its examples, what is about engines stands for nothing.

    num_prompts: lines of the prompt file; 0 where a data source gives the prompts.
    num_rollout: rollouts of the whole run (from --num-rollout, or --num-epoch and num_prompts).
    num_optimizer_steps: of the policy, num_rollout × num_steps_per_rollout without the rollouts that train a critic alone.
    max_context_len: prompt and answer together, from the option or the model's ``max_position_embeddings``.
    max_prompt_len: from the option, or the context minus the answer.
    staleness_bound: in weight versions, by the schedule.
    router_policy: of the router before the engines; ``none`` where there is no router.
    num_eval_engines: engines for evaluation alone.
    num_critic_ranks: a critic's own ranks; 0 where it is on the policy's, or there is none.
    micro_batch_size, max_tokens_per_gpu: exactly one of them is set.
    packing: how rows of a forward pass stand.
    """

    schedule: Schedule
    global_batch_size: int
    num_steps_per_rollout: int
    num_prompts: int
    num_rollout: int
    num_optimizer_steps: int
    rollout_function_path: str
    eval_function_path: str
    device: Literal["cuda", "cpu"]
    engine: Literal["embedded", "sglang"]
    update_weight_transfer_mode: TransferMode
    num_engines: int
    num_ranks: int
    max_context_len: int
    max_prompt_len: int
    update_weights_interval: int
    staleness_bound: int
    eval_temperature: float
    eval_top_p: float
    eval_top_k: int
    eval_max_response_len: int
    num_eval_engines: int = 0
    num_critic_ranks: int = 0
    micro_batch_size: int | None = None
    max_tokens_per_gpu: int | None = None
    router_policy: str = "none"
    packing: Packing = "block-mask"

    @property
    def has_router(self) -> bool:
        """Whether a router stands before the engines."""
        return self.router_policy != "none"


def default_rollout_function_path(schedule: Schedule = "sync") -> str:
    """The rollout function of a schedule, unless the user replaces it."""
    return FULLY_ASYNC_ROLLOUT if schedule == "fully_async" else INFERENCE_ROLLOUT


def schedule_of(config: AnyConfig) -> Schedule:
    """The schedule that the rollout's variant stands for."""
    if isinstance(config.rollout, SyncRollout):
        return "sync"
    return "fully_async" if isinstance(config.rollout, FullyAsync) else "one_step_off"


def values_of(config: AnyConfig | SftConfig) -> dict[str, Any]:
    """All options of a configuration by name."""
    return {name: value for section in type(config).model_fields for name, value in getattr(config, section)}


def staleness_bound(schedule: Schedule, values: Mapping[str, Any]) -> int:
    """Largest staleness in weight versions."""
    if schedule == "fully_async":
        return int(values["max_weight_staleness"])
    return 1 if schedule == "one_step_off" else 0


def batch_sizes(values: Mapping[str, Any]) -> tuple[int, int]:
    """``global_batch_size`` and ``num_steps_per_rollout`` by the batch equation; one step unless something is said."""
    samples = values["rollout_batch_size"] * values["n_samples_per_prompt"]
    batch, steps = values["global_batch_size"], values["num_steps_per_rollout"]
    if batch is None:
        steps = steps or 1
        return samples // steps, steps
    return batch, samples // batch


def count_rollouts(values: Mapping[str, Any], num_prompts: int) -> int:
    """Rollouts of the run: as many as asked for, or as many as the epochs need, the last one filled up."""
    if values["num_rollout"] is not None:
        return int(values["num_rollout"])
    needed: int = values["num_epoch"] * num_prompts
    groups: int = values["rollout_batch_size"]
    return math.ceil(needed / groups)


def critic_only_rollouts(values: Mapping[str, Any]) -> int:
    """Rollouts at the start on which the policy takes no step."""
    return int(values["num_critic_only_steps"]) if values["advantage_estimator"] == "ppo" else 0


def critic_ranks(values: Mapping[str, Any]) -> int:
    """Ranks that a critic has for itself."""
    return int(values["critic_num_gpus_per_node"] or 0) if values["advantage_estimator"] == "ppo" else 0


def shares_critic(config: AnyConfig, derived: Derived) -> bool:
    """Whether a critic sits on the policy's ranks."""
    return config.algorithm.advantage_estimator == "ppo" and not derived.num_critic_ranks


def context_len(values: Mapping[str, Any], facts: Facts) -> int:
    """Longest prompt and answer together, in tokens.

    Raises:
        ConfigError: neither the option nor the model says.
    """
    limit: int | None = values["rollout_max_context_len"] or facts.model_context_len
    if limit is None:
        raise ConfigError([Problem("rollout_max_context_len", "", "", NO_LIMIT, "Pass --rollout-max-context-len")])
    return limit


def device_of(values: Mapping[str, Any], facts: Facts) -> Literal["cuda", "cpu"]:
    """``auto`` is CUDA where there is a driver."""
    wants_cuda = values["device"] == "cuda" or (values["device"] == "auto" and facts.has_cuda)
    return "cuda" if wants_cuda else "cpu"


def engine_of(values: Mapping[str, Any], facts: Facts) -> Literal["embedded", "sglang"]:
    """``auto`` is sglang on CUDA, embedded on a CPU."""
    on_cuda = device_of(values, facts) == "cuda"
    return "sglang" if values["engine"] == "sglang" or (values["engine"] == "auto" and on_cuda) else "embedded"


def count_engines(values: Mapping[str, Any]) -> int:
    """Engines that miles starts: none where the user's own serve."""
    if values["rollout_external_engine_addrs"]:
        return 0
    size: int = values["rollout_num_gpus_per_engine"]
    if "rollout_num_gpus" in values:
        return int(values["rollout_num_gpus"] // size)
    return int(values["actor_num_nodes"] * values["actor_num_gpus_per_node"] // size)  # with --colocate: the policy's devices


def sends_adapters_alone(values: Mapping[str, Any]) -> bool:
    """Whether engines get LoRA adapters and no whole weights."""
    return values["lora_rank"] is not None and values["lora_publish"] == "adapter"


def transfer_mode_of(values: Mapping[str, Any], facts: Facts) -> TransferMode:
    """``auto``: one folder for all engines on a CPU; on GPUs broadcast, or their own memory where they share them."""
    chosen: TransferMode | Literal["auto"] = values["update_weight_transfer_mode"]
    if chosen != "auto":
        return chosen
    if sends_adapters_alone(values) or device_of(values, facts) == "cpu" or engine_of(values, facts) == "embedded":
        return "disk"
    return "tensor" if values.get("colocate") else "broadcast"


def router_policy_of(values: Mapping[str, Any], facts: Facts) -> str:
    """``auto`` is manual before several sglang engines that are started here, if there is a router; else none."""
    policy: str = values["router_policy"]
    if policy != "auto":
        return policy
    if sends_adapters_alone(values):
        return "none"
    is_for_groups = engine_of(values, facts) == "sglang" and count_engines(values) > 1 and facts.has_router
    return "manual" if is_for_groups else "none"


def packing_of(values: Mapping[str, Any], facts: Facts) -> Packing:
    """``auto``: end to end where one kernel computes all segments."""
    chosen: Packing | Literal["auto"] = values["packing"]
    if chosen != "auto":
        return chosen
    has_kernel = facts.has_varlen and values["dtype"] == "bfloat16" and device_of(values, facts) == "cuda"
    return "varlen" if has_kernel else "block-mask"


def tokens_per_forward(values: Mapping[str, Any], context: int) -> int | None:
    """Tokens in one forward pass: as asked for, or one full context and at least 4096."""
    if values["micro_batch_size"] is not None:
        return None
    return int(values["max_tokens_per_gpu"] or max(context, LEAST_TOKENS_PER_FORWARD))


def loss_aggregation(chosen: Aggregation | None, estimator: Estimator) -> Aggregation:
    """As asked for, or what the estimator's paper has."""
    own: dict[str, Aggregation] = {"dr_grpo": "sequence-sum-over-constant", "gspo": "sequence-mean"}
    return chosen or own.get(estimator, "token-mean")


def derive(config: AnyConfig, facts: Facts) -> Derived:
    """The derived values of a configuration without problems."""
    values, schedule = values_of(config), schedule_of(config)
    batch, steps = batch_sizes(values)
    num_rollout = count_rollouts(values, facts.num_prompts)
    context = context_len(values, facts)
    return Derived(
        schedule=schedule,
        global_batch_size=batch,
        num_steps_per_rollout=steps,
        num_prompts=facts.num_prompts,
        num_rollout=num_rollout,
        num_optimizer_steps=(num_rollout - critic_only_rollouts(values)) * steps,
        rollout_function_path=values.get("rollout_function_path") or default_rollout_function_path(schedule),
        eval_function_path=values["eval_function_path"] or EVALUATE,
        device=device_of(values, facts),
        engine=engine_of(values, facts),
        update_weight_transfer_mode=transfer_mode_of(values, facts),
        num_engines=count_engines(values),
        num_ranks=values["actor_num_nodes"] * values["actor_num_gpus_per_node"],
        max_context_len=context,
        max_prompt_len=values["rollout_max_prompt_len"] or context - values["rollout_max_response_len"],
        update_weights_interval=values.get("update_weights_interval", 1),
        staleness_bound=staleness_bound(schedule, values),
        eval_temperature=_or(values["eval_temperature"], values["rollout_temperature"]),
        eval_top_p=_or(values["eval_top_p"], values["rollout_top_p"]),
        eval_top_k=_or(values["eval_top_k"], values["rollout_top_k"]),
        eval_max_response_len=values["eval_max_response_len"] or values["rollout_max_response_len"],
        num_critic_ranks=critic_ranks(values),
        num_eval_engines=values["eval_num_gpus"] // values["rollout_num_gpus_per_engine"],
        micro_batch_size=values["micro_batch_size"],
        max_tokens_per_gpu=tokens_per_forward(values, context),
        router_policy=router_policy_of(values, facts),
        packing=packing_of(values, facts),
    )


def _or(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value
