"""``miles sft``: what is refused, and what follows from its options, where it differs from the commands with rollouts."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from miles.config.checks import Check, one_of
from miles.config.commands import SftConfig
from miles.config.derived import Derived, context_len, device_of, packing_of, tokens_per_forward, values_of
from miles.config.facts import Facts, first_line
from miles.config.file_checks import keys_of
from miles.config.options.sft import LEARNED_BATCH_SIZE
from miles.config.view import View
from miles.errors import Problem

SFT = "sft"
Line = tuple[str, Any, str]


def batch_size(values: Mapping[str, Any]) -> int:
    """Examples of an optimiser step."""
    return int(values["global_batch_size"] or LEARNED_BATCH_SIZE)


def count_steps(values: Mapping[str, Any], num_examples: int) -> int:
    """As many as asked for, or as the epochs need, the last one filled up."""
    if values["train_iters"] is not None:
        return int(values["train_iters"])
    num_epoch: int = values["num_epoch"]
    return math.ceil(num_epoch * num_examples / batch_size(values))


def derive_sft(config: SftConfig, facts: Facts) -> Derived:
    """The derived values of a configuration without problems."""
    values = values_of(config)
    steps, context = count_steps(values, facts.num_prompts), context_len(values, facts)
    return Derived(
        schedule="sft",
        global_batch_size=batch_size(values),
        num_steps_per_rollout=1,
        num_prompts=facts.num_prompts,
        num_rollout=steps,
        num_optimizer_steps=steps,
        rollout_function_path="",
        eval_function_path="",
        device=device_of(values, facts),
        engine="embedded",
        num_engines=0,
        num_ranks=values["actor_num_nodes"] * values["actor_num_gpus_per_node"],
        max_context_len=context,
        max_prompt_len=context,
        update_weights_interval=1,
        update_weight_transfer_mode="disk",
        staleness_bound=0,
        eval_temperature=0.0,
        eval_top_p=1.0,
        eval_top_k=-1,
        eval_max_response_len=context,
        micro_batch_size=values["micro_batch_size"],
        max_tokens_per_gpu=tokens_per_forward(values, context),
        packing=packing_of(values, facts),
    )


def ranks_with_examples(view: View) -> Iterator[Problem]:
    """Every rank has an example to learn from."""
    num_ranks, size = view["actor_num_nodes"] * view["actor_num_gpus_per_node"], batch_size(view.values)
    if num_ranks > size:
        why = f"makes {num_ranks} ranks with {view.named('actor_num_nodes')}, but a step has {size} examples"
        yield view.problem("actor_num_gpus_per_node", why, f"Lower it to at most {size} ranks, or raise --global-batch-size")


def keys_of_examples(view: View) -> Iterator[Problem]:
    """The first line has the keys that examples are read from."""
    found = first_line(view["prompt_data"])
    keys, wanted = keys_of(found), ["messages_key"]
    if view["example_format"] == "prompt-label":
        wanted = ["input_key", "label_key"]
        if view["label_key"] is None:
            yield view.problem("label_key", f"is needed by {view.named('example_format')}", "Pass --label-key KEY")
            return
    for name in wanted:
        if view[name] not in keys:
            place = f"line {found[0] if found else 1} of {view['prompt_data'].name}"
            why = f"is no key of {place}, which has {', '.join(keys) or 'none'}"
            other = "prompt-label" if name == "messages_key" else "messages"
            remedy = f"Give --{name.replace('_', '-')} the key that holds it, or --example-format {other}"
            yield view.problem(name, why, remedy)


SFT_CHECKS = (
    Check(one_of("train_iters", "num_epoch", needed=True), ("train_iters", "num_epoch")),
    Check(ranks_with_examples, ("actor_num_nodes", "actor_num_gpus_per_node", "global_batch_size")),
)


def sft_checks_with(facts: Facts) -> tuple[Check, ...]:
    """The checks that look at the data."""

    def warm_up(view: View) -> Iterator[Problem]:
        steps = count_steps(view.values, facts.num_prompts)
        if view["lr_warmup_iters"] >= steps:
            why = f"leaves nothing of the run, which has optimiser steps: {steps}"
            yield view.problem("lr_warmup_iters", why, f"Give --lr-warmup-iters at most {steps - 1}")

    data = ("prompt_data", "example_format", "messages_key", "input_key", "label_key")
    return (
        Check(warm_up, ("lr_warmup_iters", "train_iters", "num_epoch", "global_batch_size")),
        Check(keys_of_examples, data),
    )


def sft_arithmetic(view: View, derived: Derived) -> Iterator[Line]:
    """Option left open, the value it ends up with, and how."""
    size = derived.global_batch_size
    yield "global_batch_size", size, "unless something is said"
    if view["num_epoch"] is not None:
        sizes = f"{view['num_epoch']} × {derived.num_prompts} / {size}"
        yield "train_iters", derived.num_rollout, f"num_epoch × num_examples / global_batch_size, rounded up: {sizes}"


def sft_facts(view: View, derived: Derived) -> Iterator[Line]:
    """Values that are no options."""
    ranks = f"{view['actor_num_nodes']} × {view['actor_num_gpus_per_node']} = {derived.num_ranks}"
    passes = derived.num_rollout * derived.global_batch_size / derived.num_prompts
    yield "schedule", derived.schedule, "miles sft"
    yield "num_examples", derived.num_prompts, f"lines of {view['prompt_data'].name}"
    yield "num_passes", f"{passes:.3g}", f"{derived.num_rollout} × {derived.global_batch_size} / {derived.num_prompts}"
    yield "num_ranks", derived.num_ranks, f"actor_num_nodes × actor_num_gpus_per_node = {ranks}"
