"""Options that contradict each other; the same checks for the command line and for Python.

Each check names the options it reads and is skipped when one of them is unknown or has a problem of its own.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from miles.config.adapter_checks import adapters_alone, reference_of_adapters
from miles.config.answer_checks import continued_answers, judge_of_turns, one_maker_of_answers
from miles.config.effects import effect_problems
from miles.config.options.base import OptionSet
from miles.config.rank_checks import copies_in_whole, samples_for_critic, samples_for_ranks
from miles.config.registry import option_table
from miles.config.server_arguments import SERVERS, server_arguments
from miles.config.view import EXTERNAL, View, view_of
from miles.errors import ConfigError, Problem

Find = Callable[[View], Iterator[Problem]]


@dataclass(frozen=True, slots=True)
class Check:
    """``find`` yields the problems among the options ``reads``."""

    find: Find
    reads: tuple[str, ...]


def run_checks(view: View, checks: Iterable[Check]) -> list[Problem]:
    """The problems that the checks find, none on top of another's."""
    problems: list[Problem] = []
    bad: set[str] = set()
    for check in checks:
        if all(name in view and name not in bad for name in check.reads):
            found = list(check.find(view))
            bad |= {problem.option for problem in found}
            problems += found
    return problems


def check_config(command: str, config: OptionSet) -> None:
    """Refuse what cannot be run, for a configuration built in Python; looks at no file.

    Raises:
        ConfigError: with every problem.
    """
    view = view_of(command, config)
    problems = run_checks(view, ARGUMENT_CHECKS)
    bad = {problem.option for problem in problems}
    problems += [problem for problem in effect_problems(view) if problem.option not in bad]
    bad |= {problem.option for problem in problems}
    problems += run_checks(view, [check for check in CHECKS if not bad & set(check.reads)])
    if problems:
        raise ConfigError(problems)


def batch_equation(view: View) -> Iterator[Problem]:
    """``rollout_batch_size × n_samples_per_prompt = global_batch_size × num_steps_per_rollout``."""
    groups, size = view["rollout_batch_size"], view["n_samples_per_prompt"]
    batch, steps = view["global_batch_size"], view["num_steps_per_rollout"]
    samples = groups * size
    made = f"rollout_batch_size × n_samples_per_prompt = {groups} × {size} = {samples}"
    if batch is not None and steps is not None:
        if batch * steps != samples:
            why = f"contradicts {view.named('num_steps_per_rollout')}: {batch} × {steps} = {batch * steps}, but {made}"
            yield view.problem("global_batch_size", why, "Leave out one of the two; it is derived")
        return
    name = "global_batch_size" if batch is not None else "num_steps_per_rollout"
    parts = view[name]
    if parts is not None and samples % parts:
        flag = option_table()[name].flag
        why = f"does not divide the samples of a rollout, {made}"
        yield view.problem(name, why, f"Give {flag} a divisor of {samples}, or change the sizes of the rollout")


def one_of(first: str, second: str, *, needed: bool) -> Find:
    """A check that at most one, or with ``needed`` exactly one, of two options is set."""

    def find(view: View) -> Iterator[Problem]:
        one, other = option_table()[first].flag, option_table()[second].flag
        if view[first] is not None and view[second] is not None:
            yield view.problem(first, f"goes together with {view.named(second)} in no run", _unset(view, first, second))
        if needed and view[first] is None and view[second] is None:
            yield view.problem(first, f"is not set, and neither is {second}", f"Pass {one} or {other}")

    return find


def _unset(view: View, first: str, second: str) -> str:
    one, other = option_table()[first].flag, option_table()[second].flag
    return f"Keep one of {one} and {other}; `{other} none` takes back a value from a file"


def epochs_of_a_file(view: View) -> Iterator[Problem]:
    """How long an epoch of a data source is, nobody knows."""
    if view["num_epoch"] is not None and view["data_source_path"] is not None:
        why = f"counts passes over a prompt file, and {view.named('data_source_path')} gives the prompts"
        yield view.problem("num_epoch", why, "Pass --num-rollout instead")


def learning_rates(view: View) -> Iterator[Problem]:
    """A decay goes down."""
    if view["lr_decay_style"] != "constant" and view["min_lr"] >= view["lr"]:
        yield view.problem("min_lr", f"is not below {view.named('lr')}", "Give --min-lr a value below --lr")


def clip_band(view: View) -> Iterator[Problem]:
    """The band of importance weights is not empty."""
    if view["tis_clip_low"] > view["tis_clip"]:
        remedy = "Give --tis-clip-low a value of at most --tis-clip"
        yield view.problem("tis_clip_low", f"is above {view.named('tis_clip')}", remedy)


def untruncated(name: str, off: int) -> Find:
    """A check that sampling is not truncated under a correction: engines give the log-probs from before truncation."""

    def find(view: View) -> Iterator[Problem]:
        if view["off_policy_correction"] != "none" and view[name] not in (off, 0):
            why = f"does not go with {view.named('off_policy_correction')}: engines report log-probs from before top-p and top-k"
            remedy = f"Set {option_table()[name].flag} to {off}, or --off-policy-correction to none"
            yield view.problem(name, why, remedy)

    return find


def top_k(name: str) -> Find:
    """A check that top-k keeps at least one token, or all (-1)."""

    def find(view: View) -> Iterator[Problem]:
        if view[name] == 0:
            yield view.problem(name, "keeps no token", f"Give {option_table()[name].flag} at least 1, or -1 to keep all tokens")

    return find


def lengths(view: View) -> Iterator[Problem]:
    """Prompt and answer fit into the context, as far as the options say."""
    context, prompt, answer = (view[f"rollout_max_{part}_len"] for part in ("context", "prompt", "response"))
    if context is None:
        return
    limit = view.named("rollout_max_context_len")
    if answer >= context:
        remedy = "Lower --rollout-max-response-len or raise --rollout-max-context-len"
        yield view.problem("rollout_max_response_len", f"leaves no room for a prompt in {limit}", remedy)
    elif prompt is not None and prompt + answer > context:
        why = f"and {view.named('rollout_max_response_len')} make {prompt + answer}, more than {limit}"
        yield view.problem("rollout_max_prompt_len", why, "Lower --rollout-max-prompt-len or --rollout-max-response-len")


def concurrency(view: View) -> Iterator[Problem]:
    """At least one group can be in flight."""
    samples = view["async_max_concurrent_samples"]
    if samples is not None and samples < view["n_samples_per_prompt"]:
        why = f"holds not even one group: {view.named('n_samples_per_prompt')} (the limit counts samples, not groups)"
        remedy = "Give --async-max-concurrent-samples at least --n-samples-per-prompt"
        yield view.problem("async_max_concurrent_samples", why, remedy)


def over_sampling(view: View) -> Iterator[Problem]:
    """More groups are started than are used."""
    started, used = view["over_sampling_batch_size"], view["rollout_batch_size"]
    if started is not None and started < used:
        why = f"is less than {view.named('rollout_batch_size')}, which is what a rollout needs"
        yield view.problem("over_sampling_batch_size", why, f"Give --over-sampling-batch-size at least {used}, or leave it out")
    elif started is not None and view["rollout_function_path"] is not None:
        why = f"has no effect while {view.named('rollout_function_path')} makes the rollouts"
        yield view.problem("over_sampling_batch_size", why, "Leave one of the two out")


def function_needs_a_path(view: View) -> Iterator[Problem]:
    """A function that is called for each rollout has to be named."""
    if view["rollout_api"] == "function" and view["rollout_function_path"] is None:
        why = "calls a function of yours, and none is named"
        yield view.problem("rollout_api", why, "Pass --rollout-function-path, or set --rollout-api to class")


def engine_size(view: View) -> Iterator[Problem]:
    """Engines have their GPUs in whole, and an embedded engine has one."""
    size, gpus = view["rollout_num_gpus_per_engine"], view["rollout_num_gpus"]
    if size > 1 and view["engine"] == "embedded":
        why = "is more than an embedded engine uses: it runs on one device"
        yield view.problem("rollout_num_gpus_per_engine", why, "Leave --rollout-num-gpus-per-engine at 1")
    elif gpus % size:
        why = f"is no multiple of {view.named('rollout_num_gpus_per_engine')}"
        yield view.problem("rollout_num_gpus", why, f"Give --rollout-num-gpus a multiple of {size}")


def shared_devices(view: View) -> Iterator[Problem]:
    """Engines on the policy's devices cover them in whole, and are started by the run."""
    if not view.chose("colocate"):
        return
    size, ranks = view["rollout_num_gpus_per_engine"], view["actor_num_nodes"] * view["actor_num_gpus_per_node"]
    if view["rollout_external_engine_addrs"]:
        why = "has the engines take turns with the policy, and servers of yours are not stopped for it"
        yield view.problem("colocate", why, "Leave --colocate out, or --rollout-external-engine-addrs")
    elif ranks % size:
        why = f"does not divide the policy's devices, actor_num_nodes × actor_num_gpus_per_node = {ranks}"
        yield view.problem("rollout_num_gpus_per_engine", why, f"Give --rollout-num-gpus-per-engine a divisor of {ranks}")


def comparable_weights(view: View) -> Iterator[Problem]:
    """Checksums are of whole tensors, and an engine of several devices holds slices."""
    if view["check_weight_update"] and view["rollout_num_gpus_per_engine"] > 1:
        why = f"compares whole tensors, and with {view.named('rollout_num_gpus_per_engine')} every device holds slices"
        remedy = "Leave --check-weight-update out, or set --rollout-num-gpus-per-engine to 1"
        yield view.problem("check_weight_update", why, remedy)


def eval_names(view: View) -> Iterator[Problem]:
    """Every held-out data set has a name of its own."""
    names = [name for name, _ in view["eval_prompt_data"]]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        yield view.problem(
            "eval_prompt_data", f"gives the name {', '.join(twice)} twice", "Give every data set a name of its own"
        )
    if not all(name.strip() for name in names):
        yield view.problem("eval_prompt_data", "has a data set without a name", "Pass --eval-prompt-data NAME PATH")
    for name in names:
        if "/" in name or name == "weight_version":
            why = f"has a data set named {name!r}, which cannot stand in the metric eval/<name>"
            yield view.problem("eval_prompt_data", why, "Give it a name without `/`, and not weight_version")


def best_metric(view: View) -> Iterator[Problem]:
    """The metric of the best checkpoint is one that an evaluation writes."""
    metric, names = view["keep_best_by"], [f"eval/{name}" for name, _ in view["eval_prompt_data"]]
    if metric is not None and metric not in names and view["eval_checkpoint_function_path"] is None:
        remedy = f"Give --keep-best-by {' or '.join(names)}" if names else "Pass --eval-prompt-data, or leave it out"
        yield view.problem("keep_best_by", "is no metric that an evaluation of this run writes", remedy)


def eval_engines(view: View) -> Iterator[Problem]:
    """The evaluation's engines have their GPUs in whole."""
    size = view["rollout_num_gpus_per_engine"]
    if view["eval_num_gpus"] % size:
        why = f"is no multiple of {view.named('rollout_num_gpus_per_engine')}"
        yield view.problem("eval_num_gpus", why, f"Give --eval-num-gpus a multiple of {size}")


def one_evaluation(view: View) -> Iterator[Problem]:
    """A function that is given a folder makes the whole evaluation."""
    for other in ("eval_num_gpus", "eval_function_path"):
        if view["eval_checkpoint_function_path"] is not None and view[other]:
            why = f"goes together with {view.named(other)} in no run: either is the whole evaluation"
            yield view.problem("eval_checkpoint_function_path", why, "Leave one of the two out")
            return


def needed_label(view: View) -> Iterator[Problem]:
    """The built-in rewards compare with a label."""
    if view["rm_type"] is not None and view["label_key"] is None:
        yield view.problem("label_key", f"is needed by {view.named('rm_type')}", "Pass --label-key KEY")


ARGUMENT_CHECKS = tuple(Check(server_arguments(server), (server,)) for server in SERVERS)
ADAPTER = ("lora_rank", "lora_publish")
BATCH = ("rollout_batch_size", "n_samples_per_prompt", "global_batch_size", "num_steps_per_rollout")
CHECKS = (
    Check(one_of("prompt_data", "data_source_path", needed=False), ("prompt_data", "data_source_path")),
    Check(one_of("num_rollout", "num_epoch", needed=True), ("num_rollout", "num_epoch")),
    Check(epochs_of_a_file, ("num_epoch", "data_source_path")),
    Check(batch_equation, BATCH),
    Check(lengths, ("rollout_max_context_len", "rollout_max_prompt_len", "rollout_max_response_len")),
    Check(top_k("rollout_top_k"), ("rollout_top_k",)),
    Check(untruncated("rollout_top_p", 1), ("off_policy_correction", "rollout_top_p")),
    Check(untruncated("rollout_top_k", -1), ("off_policy_correction", "rollout_top_k")),
    Check(one_of("rm_type", "custom_rm_path", needed=True), ("rm_type", "custom_rm_path")),
    Check(needed_label, ("rm_type", "label_key")),
    Check(over_sampling, ("over_sampling_batch_size", "rollout_batch_size", "rollout_function_path")),
    Check(continued_answers, ("partial_rollout", "custom_generate_function_path", "environment_path")),
    Check(judge_of_turns, ("environment_path", "rm_type")),
    Check(one_maker_of_answers, ("environment_path", "custom_generate_function_path")),
    Check(function_needs_a_path, ("rollout_api", "rollout_function_path")),
    Check(concurrency, ("async_max_concurrent_samples", "n_samples_per_prompt")),
    Check(clip_band, ("tis_clip", "tis_clip_low")),
    Check(learning_rates, ("lr", "min_lr", "lr_decay_style")),
    Check(one_of("micro_batch_size", "max_tokens_per_gpu", needed=False), ("micro_batch_size", "max_tokens_per_gpu")),
    Check(copies_in_whole, ("actor_num_nodes", "actor_num_gpus_per_node", "actor_num_gpus_per_replica")),
    Check(reference_of_adapters, ("lora_rank", "ref_update_interval")),
    Check(adapters_alone, (*ADAPTER, EXTERNAL, "update_weight_transfer_mode", "actor_num_nodes", "router_policy")),
    Check(samples_for_ranks, ("actor_num_nodes", "actor_num_gpus_per_node", *BATCH)),
    Check(samples_for_critic, ("critic_num_gpus_per_node", "advantage_estimator", *BATCH)),
    Check(engine_size, ("rollout_num_gpus_per_engine", "rollout_num_gpus", "engine")),
    Check(
        shared_devices,
        ("rollout_num_gpus_per_engine", "actor_num_nodes", "actor_num_gpus_per_node", "rollout_external_engine_addrs"),
    ),
    Check(comparable_weights, ("check_weight_update", "rollout_num_gpus_per_engine")),
    Check(eval_names, ("eval_prompt_data",)),
    Check(best_metric, ("keep_best_by", "eval_prompt_data", "eval_checkpoint_function_path")),
    Check(eval_engines, ("eval_num_gpus", "rollout_num_gpus_per_engine")),
    Check(one_evaluation, ("eval_checkpoint_function_path", "eval_num_gpus", "eval_function_path")),
    Check(top_k("eval_top_k"), ("eval_top_k",)),
)


def warnings_of(view: View) -> Iterator[str]:
    """What is allowed and still surprises."""
    continues = view.values.get("partial_rollout") and not view["mask_offpolicy_in_partial_rollout"]
    if continues and view["off_policy_correction"] == "none":
        yield (
            "--partial-rollout trains on tokens of earlier weights, and nothing corrects for it: "
            "--off-policy-correction tis weighs them, --mask-offpolicy-in-partial-rollout leaves them out"
        )
    if not view.chose("fully_async"):
        return
    bound, interval = view["max_weight_staleness"], view["update_weights_interval"]
    if view["deterministic"] and bound > 0:
        yield (
            "--deterministic fixes the engines and the policy, but under --fully-async which weights sample a token "
            "depends on timing; --max-weight-staleness 0 makes the run repeatable"
        )
    rollouts = (bound + 1) * interval
    samples = rollouts * view["rollout_batch_size"] * view["n_samples_per_prompt"]
    admitted = {"async_data_buffer_capacity_factor": rollouts, "async_max_concurrent_samples": samples}
    for name, limit in admitted.items():
        if view[name] is not None and view[name] > limit:
            yield f"{view.named(name)} has no effect above {limit}, which is what the staleness bound admits"
