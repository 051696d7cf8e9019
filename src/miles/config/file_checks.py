"""What the options point to: folders, prompt files, the model's limits and the machine; asked by the resolver only."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from miles.config.adapter_checks import adapters_on_engines
from miles.config.checks import Check, Find
from miles.config.derived import (
    batch_sizes,
    count_engines,
    count_rollouts,
    critic_only_rollouts,
    device_of,
    engine_of,
    router_policy_of,
)
from miles.config.facts import Facts, checkpoint_in, first_line, read_model_config, read_vocab_size
from miles.config.hub import how_to_get, is_hub_name
from miles.config.length_checks import length_checks
from miles.config.model_checks import chat_template, vocabulary
from miles.config.registry import option_table
from miles.config.view import View
from miles.errors import ConfigError, Problem


def checkpoint_folder(view: View) -> Iterator[Problem]:
    """The model is an HF folder."""
    folder: Path = view["hf_checkpoint"]
    if not folder.exists():
        remedy = "Correct the path, or download the model first and pass its folder as --hf-checkpoint"
        yield view.problem("hf_checkpoint", "there is no such folder", _download(view, "hf_checkpoint") or remedy)
    elif not (folder / "config.json").is_file():
        yield view.problem("hf_checkpoint", "is no HF model folder: it has no config.json", "Pass a folder with config.json")
    else:
        try:
            read_model_config(folder)
        except ConfigError as error:
            yield view.problem("hf_checkpoint", error.problems[0].why, error.problems[0].remedy)


def _download(view: View, name: str) -> str:
    """What to do about a model's name on the hub that is in no cache; empty for anything else."""
    text = view.texts.get(name, "")
    return how_to_get(text) if is_hub_name(text) and not view[name].exists() else ""


def second_model(name: str) -> Find:
    """A check that the folder of another model is one, too, and that its tokens are the policy's."""

    def find(view: View) -> Iterator[Problem]:
        folder: Path | None = view[name]
        if folder is None:
            return
        flag = option_table()[name].flag
        if not (folder / "config.json").is_file():
            why = "is no HF model folder: it has no config.json" if folder.exists() else "there is no such folder"
            remedy = f"Pass a folder with config.json, or leave {flag} out for --hf-checkpoint itself"
            yield view.problem(name, why, _download(view, name) or remedy)
            return
        try:
            own, other = (read_vocab_size(path) for path in (view["hf_checkpoint"], folder))
        except ConfigError as error:
            yield view.problem(name, error.problems[0].why, error.problems[0].remedy)
            return
        if own is not None and other is not None and own != other:
            why = f"has a vocabulary of {other} tokens, and {view.named('hf_checkpoint')} one of {own}"
            yield view.problem(name, why, f"Give {flag} a model with the policy's tokenizer")

    return find


def loaded_checkpoint(view: View) -> Iterator[Problem]:
    """What a run begins with is a checkpoint."""
    if view["load"] is None:
        return
    try:
        checkpoint_in(view["load"])
    except ConfigError as error:
        yield view.problem("load", error.problems[0].why, error.problems[0].remedy)


def prompt_file(view: View) -> Iterator[Problem]:
    """The prompt file can be read and is not empty."""
    if view["prompt_data"] is not None:
        yield from _file_problems(view, "prompt_data", view["prompt_data"], "")


def eval_files(view: View) -> Iterator[Problem]:
    """So can the held-out ones."""
    for name, path in view["eval_prompt_data"]:
        yield from _file_problems(view, "eval_prompt_data", path, name)


def _file_problems(view: View, option: str, path: Path, item: str) -> Iterator[Problem]:
    label = f"{item}: " if item else ""
    remedy = f"Pass a JSONL file as {option_table()[option].flag}"
    if not path.exists():
        yield view.problem(option, f"{label}there is no such file: {path}", "Correct the path", item)
    elif path.is_dir():
        yield view.problem(option, f"{label}is a folder: {path}", remedy, item)
    elif not path.is_file():
        yield view.problem(option, f"{label}is no regular file: {path}", f"{remedy}; it is read more than once", item)
    else:
        try:
            found = first_line(path)
        except OSError as error:
            why = f"{label}cannot be read ({error.strerror}): {path}"
            yield view.problem(option, why, "Correct the path or its permissions", item)
            return
        if found is None:
            yield view.problem(option, f"{label}the file is empty: {path}", remedy, item)
        elif not isinstance(_parsed(found[1]), dict):
            yield view.problem(option, f"{label}line {found[0]} is no JSON object: {path}", remedy, item)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def keys_of(found: tuple[int, bytes] | None) -> Mapping[str, Any]:
    """What a line of a data file holds, by key; it is known to be an object."""
    keys: Mapping[str, Any] = _parsed(found[1]) if found else {}
    return keys


def prompt_key(view: View) -> Iterator[Problem]:
    """The first prompt has the key that prompts are read from."""
    if view["prompt_data"] is None:
        return
    found = first_line(view["prompt_data"])
    keys = keys_of(found)
    if "rollout_batch_size" in view and view["input_key"] not in keys:
        why = f"is no key of line {found[0] if found else 1} of {view['prompt_data'].name}, which has {', '.join(keys) or 'none'}"
        yield view.problem("input_key", why, "Give --input-key the key of the prompts")


def no_file_at(name: str) -> Find:
    """A check that a folder to be written is not a file."""

    def find(view: View) -> Iterator[Problem]:
        path = view[name]
        if path is not None and path.exists() and not path.is_dir():
            yield view.problem(name, "is a file, and a folder is needed", f"Give {option_table()[name].flag} another path")

    return find


FILE_CHECKS = (
    Check(checkpoint_folder, ("hf_checkpoint",)),
    Check(vocabulary, ("hf_checkpoint",)),
    Check(chat_template, ("apply_chat_template", "hf_checkpoint")),
    Check(loaded_checkpoint, ("load",)),
    Check(second_model("ref_load"), ("ref_load", "hf_checkpoint")),
    Check(second_model("critic_load"), ("critic_load", "hf_checkpoint")),
    Check(prompt_file, ("prompt_data",)),
    Check(prompt_key, ("prompt_data", "input_key")),
    Check(eval_files, ("eval_prompt_data",)),
    Check(no_file_at("run_dir"), ("run_dir",)),
    Check(no_file_at("save"), ("save",)),
)


def warm_ups_within(facts: Facts) -> Find:
    """A check that every warm-up ends before the run does."""

    def warm_up(view: View) -> Iterator[Problem]:
        rollouts, alone = count_rollouts(view.values, facts.num_prompts), critic_only_rollouts(view.values)
        if alone >= rollouts:
            why = f"leaves the policy none of the run's rollouts, which are {rollouts}"
            yield view.problem("num_critic_only_steps", why, f"Give --num-critic-only-steps at most {rollouts - 1}")
            return
        per_rollout = batch_sizes(view.values)[1]
        warm_ups = {"lr_warmup_iters": (rollouts - alone) * per_rollout, "critic_lr_warmup_iters": rollouts * per_rollout}
        for name, steps in warm_ups.items():
            if view[name] >= steps:
                why = f"leaves nothing of the run, which has optimiser steps: {steps}"
                yield view.problem(name, why, f"Give {option_table()[name].flag} at most {steps - 1}")

    return warm_up


def checks_with(facts: Facts) -> tuple[Check, ...]:
    """The checks that compare options with the facts of the files and the machine."""
    warm_ups = ("lr_warmup_iters", "critic_lr_warmup_iters", "num_critic_only_steps")
    sizes = ("rollout_batch_size", "n_samples_per_prompt", "global_batch_size", "num_steps_per_rollout")
    run = ("num_rollout", "num_epoch", "advantage_estimator", *warm_ups, *sizes)
    return (*length_checks(facts), Check(warm_ups_within(facts), run), *machine_checks(facts), *engine_checks(facts))


def machine_checks(facts: Facts) -> tuple[Check, ...]:
    """What the policy's options ask of this machine."""

    def machine(view: View) -> Iterator[Problem]:
        if view["device"] == "cuda" and not facts.has_cuda:
            yield view.problem("device", "needs an NVIDIA driver, and there is none here", "Pass --device cpu")

    def offload(view: View) -> Iterator[Problem]:
        if view["optimizer_cpu_offload"] and device_of(view.values, facts) == "cpu":
            why = "has no effect on a CPU, where everything is in host memory already"
            yield view.problem("optimizer_cpu_offload", why, "Leave --optimizer-cpu-offload out, or pass --device cuda")

    def packing(view: View) -> Iterator[Problem]:
        if view["packing"] != "varlen" or device_of(view.values, facts) == "cpu":
            return
        if view["dtype"] != "bfloat16":
            why = f"is for 16 bits on a GPU, and {view.named('dtype')} has more: torch's kernel for segments does not take them"
            yield view.problem("packing", why, "Pass --dtype bfloat16, or --packing block-mask")
        elif not facts.has_varlen:
            why = "needs torch 2.13 or newer on a GPU, and the one installed here is older"
            yield view.problem("packing", why, "Install a newer torch, or pass --packing block-mask")

    return (
        Check(machine, ("device",)),
        Check(offload, ("optimizer_cpu_offload", "device")),
        Check(packing, ("packing", "dtype", "device")),
    )


def engine_checks(facts: Facts) -> tuple[Check, ...]:
    """What the engines' options ask of this machine."""

    def engines(view: View) -> Iterator[Problem]:
        if not view["rollout_external_engine_addrs"] and (view["device"] != "cuda" or facts.has_cuda):
            yield from engine_problems(view, facts)

    def router(view: View) -> Iterator[Problem]:
        yield from router_problems(view, facts)

    lora = ("lora_publish", "lora_rank", "lora_targets")
    kind = ("engine", "device", "rollout_external_engine_addrs", "rollout_num_gpus_per_engine")
    return (
        Check(adapters_on_engines(facts), (*lora, "engine", "device", "dtype", "check_weight_update", "eval_num_gpus")),
        Check(router, ("router_policy", "router", *kind, "lora_rank", "lora_publish")),
        Check(engines, (*kind, "deterministic")),
    )


def router_problems(view: View, facts: Facts) -> Iterator[Problem]:
    """A router needs its package and several engines; its arguments need a router."""
    policy = router_policy_of(view.values, facts)
    num_engines = len(view["rollout_external_engine_addrs"]) or count_engines(view.values)
    if policy == "none":
        if view["router"]:
            why = f"has no effect: no router is started by {view.named('router_policy')} before this run's engines"
            yield view.problem(
                "router", why, "Set --router-policy to cache_aware, manual or another policy, or leave --router out"
            )
    elif num_engines < 2:
        remedy = "Leave --router-policy out, or raise --rollout-num-gpus"
        yield view.problem("router_policy", "has no effect: there is one engine, and no router is started before it", remedy)
    elif not facts.has_router:
        remedy = "`pip install sglang-router`, or pass --router-policy none"
        yield view.problem("router_policy", "needs the package sglang-router, which is not installed here", remedy)


def engine_problems(view: View, facts: Facts) -> Iterator[Problem]:
    """What stands against the engines that the run resolves to, on this machine."""
    device, engine = device_of(view.values, facts), engine_of(view.values, facts)
    if device == "cpu" and view["rollout_num_gpus_per_engine"] > 1:
        name = "an embedded engine" if engine == "embedded" else "a sglang engine on a CPU"
        why = f"is more than {name} uses: it runs on one device"
        yield view.problem("rollout_num_gpus_per_engine", why, "Leave --rollout-num-gpus-per-engine at 1")
    if engine == "sglang":
        yield from _sglang_problems(view, facts, device)


def _sglang_problems(view: View, facts: Facts, device: str) -> Iterator[Problem]:
    if not facts.has_sglang:
        how = "`pip install 'miles[sglang]'`" if device == "cuda" else "requirements/sglang-cpu.txt as the README says"
        why = f"is sglang on {device}, and the package sglang is not installed here"
        yield view.problem("engine", why, f"Install it with {how}, or pass --engine embedded")
    if device == "cpu" and view["deterministic"]:
        why = "is not possible with sglang on a CPU: its attention there has no deterministic form, so it reads no seeds"
        yield view.problem("deterministic", why, "Pass --engine embedded, or leave --deterministic out")
