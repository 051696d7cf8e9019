"""How derived values came about, in a few words and numbers each: ``16 × 8 / 128 = 1``."""

from collections.abc import Iterator, Mapping
from typing import Any

from miles.config.derived import Derived, critic_only_rollouts, loss_aggregation, sends_adapters_alone
from miles.config.reading import written
from miles.config.resolution import Row
from miles.config.sft import sft_arithmetic, sft_facts
from miles.config.view import View

PANEL = "Derived"
WHY_TRANSFER = {
    "disk": "a folder in shared memory, since no engine of this run is on a GPU",
    "tensor": "engines map the memory of the policy's GPUs, which they share",
    "broadcast": "policy and engines have GPUs of their own",
}
IN_RUN_FOLDER = "checkpoints in the run folder"


def arithmetic_of(view: View, derived: Derived) -> Mapping[str, tuple[str, str]]:
    """Option left open → the value it ends up with and how."""
    if derived.schedule == "sft":
        lines = (*sft_arithmetic(view, derived), *_forward(view, derived), *_machine(view, derived), *_ranks(view, derived),
                 *_adapters(view), *_folders())  # fmt: skip
        return {name: (written(value), text) for name, value, text in lines if _is_open(view, name)}
    lines = (*_sizes(view, derived), *_forward(view, derived), *_lengths(view, derived), *_functions(view, derived),
             *_machine(view, derived), *_evaluation(view, derived), *_limits(view), *_critic(view), *_ranks(view, derived),
             *_adapters(view), *_folders())  # fmt: skip
    return {name: (written(value), text) for name, value, text in lines if _is_open(view, name)}


def derived_facts(view: View, derived: Derived) -> Iterator[Row]:
    """Rows of the values that are no options of the chosen variants."""
    if derived.schedule == "sft":
        for name, value, text in sft_facts(view, derived):
            yield Row("derived", PANEL, name, written(value), derived=True, arithmetic=text)
        return
    ranks = f"{view['actor_num_nodes']} × {view['actor_num_gpus_per_node']} = {derived.num_ranks}"
    size = view["rollout_num_gpus_per_engine"]
    devices = f"{view['rollout_num_gpus']}" if "rollout_num_gpus" in view else f"{derived.num_ranks}"
    owner = "rollout_num_gpus" if "rollout_num_gpus" in view else "the policy's devices"
    engines = f"{owner} / rollout_num_gpus_per_engine = {devices} / {size} = {derived.num_engines}"
    if view["rollout_external_engine_addrs"]:
        engines = "the servers of rollout_external_engine_addrs are used instead"
    alone = critic_only_rollouts(view.values)
    trained, rollouts = (
        ("(num_rollout − num_critic_only_steps)", f"({derived.num_rollout} − {alone})")
        if alone
        else ("num_rollout", derived.num_rollout)
    )
    steps = f"{rollouts} × {derived.num_steps_per_rollout} = {derived.num_optimizer_steps}"
    own = f"eval_num_gpus / rollout_num_gpus_per_engine = {derived.num_eval_engines * size} / {size} = {derived.num_eval_engines}"
    facts: list[tuple[str, Any, str]] = [
        ("schedule", derived.schedule, _schedule_origin(view)),
        ("staleness_bound", derived.staleness_bound, _bound_words(view, derived)),
        *([("num_prompts", derived.num_prompts, f"lines of {view['prompt_data'].name}")] if view["prompt_data"] else []),
        ("num_optimizer_steps", derived.num_optimizer_steps, f"{trained} × num_steps_per_rollout = {steps}"),
        ("num_engines", derived.num_engines, engines),
        *([("num_eval_engines", derived.num_eval_engines, own)] if derived.num_eval_engines else []),
        *([("num_critic_ranks", derived.num_critic_ranks, "critic_num_gpus_per_node")] if derived.num_critic_ranks else []),
        ("num_ranks", derived.num_ranks, f"actor_num_nodes × actor_num_gpus_per_node = {ranks}"),
    ]
    if "rollout_function_path" not in view:
        facts.insert(1, ("rollout_function_path", derived.rollout_function_path, "from --fully-async"))
    for name, value, text in facts:
        yield Row("derived", PANEL, name, written(value), derived=True, arithmetic=text)


Line = tuple[str, Any, str]


def _is_open(view: View, name: str) -> bool:
    return name in view and view[name] in (None, "auto")


def _sizes(view: View, derived: Derived) -> Iterator[Line]:
    groups, size = view["rollout_batch_size"], view["n_samples_per_prompt"]
    batch, steps = derived.global_batch_size, derived.num_steps_per_rollout
    asked = view["num_steps_per_rollout"] is not None
    yield "global_batch_size", batch, f"{groups} × {size} / {steps} = {batch}"
    if asked or view["global_batch_size"] is not None:
        yield "num_steps_per_rollout", steps, f"{groups} × {size} / {batch} = {steps}"
    else:
        yield "num_steps_per_rollout", steps, "one optimiser step on each rollout, unless something is said"
    if view["num_epoch"] is not None:
        sizes = f"{view['num_epoch']} × {derived.num_prompts} / {groups}"
        yield "num_rollout", derived.num_rollout, f"num_epoch × num_prompts / rollout_batch_size, rounded up: {sizes}"


def _forward(view: View, derived: Derived) -> Iterator[Line]:
    if view["micro_batch_size"] is None:
        yield "max_tokens_per_gpu", derived.max_tokens_per_gpu, "the longest context, at least 4096 tokens"
    yield "rollout_max_context_len", derived.max_context_len, "the model's own limit"
    yield "packing", derived.packing, f"auto: {_why_packed(view, derived)}"


def _why_packed(view: View, derived: Derived) -> str:
    if derived.packing == "varlen":
        return "torch's kernel for segments computes no padding"
    if derived.device == "cpu":
        return "on a CPU segments are computed one by one, which pays for long answers alone"
    if view["dtype"] != "bfloat16":
        return f"torch's kernel for segments has no {view['dtype']}"
    return "this torch has no kernel for segments"


def _lengths(view: View, derived: Derived) -> Iterator[Line]:
    answer = view["rollout_max_response_len"]
    context, prompt = derived.max_context_len, derived.max_prompt_len
    yield "rollout_max_prompt_len", prompt, f"{context} − {answer} = {prompt}"


def _functions(view: View, derived: Derived) -> Iterator[Line]:
    yield "rollout_function_path", derived.rollout_function_path, f"default of {_schedule_origin(view)}"
    yield "eval_function_path", derived.eval_function_path, "the standard evaluation"


def _machine(view: View, derived: Derived) -> Iterator[Line]:
    driver = "there are GPUs" if derived.device == "cuda" else "no NVIDIA driver here"
    yield "device", derived.device, f"auto: {driver}"
    if derived.schedule == "sft":
        return
    yield "engine", derived.engine, f"auto: {derived.engine} on {derived.device}"
    why = "several sglang engines" if derived.has_router else "it is for several sglang engines, with sglang-router installed"
    if sends_adapters_alone(view.values):
        why = "it is not asked for adapters"
    yield "router_policy", derived.router_policy, f"auto: {why}"
    way = derived.update_weight_transfer_mode
    why_way = "adapters travel as files" if sends_adapters_alone(view.values) else WHY_TRANSFER[way]
    yield "update_weight_transfer_mode", way, f"auto: {why_way}"


def _evaluation(view: View, derived: Derived) -> Iterator[Line]:
    for part in ("temperature", "top_p", "top_k", "max_response_len"):
        yield f"eval_{part}", getattr(derived, f"eval_{part}"), f"from rollout_{part}"
    yield "eps_clip_high", view["eps_clip"], "from eps_clip"
    estimator = view["advantage_estimator"]
    yield "loss_aggregation", loss_aggregation(None, estimator), f"what goes with {estimator}"
    if view["use_kl_loss"] or view["kl_coef"]:
        own = "the weights the run starts from" if view["lora_rank"] is None else "the policy without its adapters"
        yield "ref_load", view["hf_checkpoint"], own


def _critic(view: View) -> Iterator[Line]:
    if view["advantage_estimator"] == "ppo":
        yield "critic_lr", view["lr"], "from lr"
        yield "critic_load", view["hf_checkpoint"], "the weights the policy starts from"


def _limits(view: View) -> Iterator[Line]:
    if not view.chose("fully_async"):
        return
    bound, interval = view["max_weight_staleness"], view["update_weights_interval"]
    groups, size = view["rollout_batch_size"], view["n_samples_per_prompt"]
    alive = (bound + 1) * interval
    words = f"(max_weight_staleness + 1) × update_weights_interval = ({bound} + 1) × {interval}"
    yield "async_data_buffer_capacity_factor", alive, f"{words} = {alive}"
    factor = view["async_data_buffer_capacity_factor"] or alive
    samples = int(factor * groups * size)
    yield "async_max_concurrent_samples", samples, f"{factor:g} × {groups} × {size} = {samples}, what the bound admits"


def _ranks(view: View, derived: Derived) -> Iterator[Line]:
    yield "actor_num_gpus_per_replica", derived.num_ranks, "one copy of the policy over all ranks"


def _adapters(view: View) -> Iterator[Line]:
    if view["lora_rank"] is not None:
        yield "lora_alpha", 2.0 * view["lora_rank"], f"2 × lora_rank = 2 × {view['lora_rank']}"


def _folders() -> Iterator[Line]:
    yield "run_dir", "a new folder under runs", "each start gets its own"
    yield "save", IN_RUN_FOLDER, "where the run writes everything else"


def _schedule_origin(view: View) -> str:
    return f"miles {view.command}" + (" --fully-async" if view.chose("fully_async") else "")


def _bound_words(view: View, derived: Derived) -> str:
    if derived.schedule == "fully_async":
        return f"max_weight_staleness = {view['max_weight_staleness']}, in weight versions"
    if derived.schedule == "one_step_off":
        return "weight versions: the next rollout runs while a step trains"
    return "weight versions: rollout and step take turns"
