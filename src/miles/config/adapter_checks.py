"""What does not go with LoRA adapters, and with sending them alone (`--lora-publish adapter`)."""

from collections.abc import Callable, Iterator

from miles.config.derived import device_of, engine_of, sends_adapters_alone
from miles.config.facts import Facts
from miles.config.view import View
from miles.errors import Problem

MERGED = "--lora-publish to merged"
SGLANG_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def reference_of_adapters(view: View) -> Iterator[Problem]:
    """The reference of a policy with adapters is what stands beside them, and does not move."""
    if view["lora_rank"] is not None and view["ref_update_interval"] is not None:
        why = f"moves the reference, and with {view.named('lora_rank')} it is the policy without its adapters"
        yield view.problem("ref_update_interval", why, "Leave --ref-update-interval or --lora-rank out")


def adapters_alone(view: View) -> Iterator[Problem]:
    """Adapters travel as files of one machine, to engines that keep the weights they were started with."""
    if not sends_adapters_alone(view.values):
        return
    chosen = view.named("lora_publish")
    way, router = view["update_weight_transfer_mode"], view["router_policy"]
    if way not in ("auto", "disk"):
        why = f"moves whole weights in buckets, and with {chosen} adapters travel as files"
        yield view.problem("update_weight_transfer_mode", why, f"Leave --update-weight-transfer-mode out, or set {MERGED}")
    if view["rollout_external_engine_addrs"]:
        why = f"names servers of yours, and {chosen} needs engines that hold the weights of --hf-checkpoint since their start"
        yield view.problem("rollout_external_engine_addrs", why, f"Set {MERGED}")
    if view.chose("colocate"):
        why = f"lets engines give their weights away while the policy trains, and with {chosen} nothing brings them back"
        yield view.problem("colocate", why, f"Leave --colocate out, or set {MERGED}")
    if view["actor_num_nodes"] > 1:
        why = f"puts engines on other nodes, and with {chosen} adapters lie in the memory of the policy's"
        yield view.problem("actor_num_nodes", why, f"Set {MERGED}")
    if router not in ("auto", "none"):
        why = f"starts a router, and requests for adapters ({chosen}) go to engines directly"
        yield view.problem("router_policy", why, f"Leave --router-policy out, or set {MERGED}")


def adapters_on_engines(facts: Facts) -> Callable[[View], Iterator[Problem]]:
    """A check of what the engines that the run resolves to do with adapters."""

    def find(view: View) -> Iterator[Problem]:
        if not sends_adapters_alone(view.values):
            return
        chosen = view.named("lora_publish")
        if engine_of(view.values, facts) == "embedded":
            if view["check_weight_update"] and view["dtype"] != "float32":
                why = f"compares bits, and with {chosen} engines add adapters to weights that are {view['dtype']} already"
                yield view.problem("check_weight_update", why, f"Leave --check-weight-update out, or set {MERGED}")
            return
        if device_of(view.values, facts) == "cpu":
            why = "is not possible with sglang on a CPU: its layers for adapters pin host memory, which takes a GPU"
            yield view.problem("lora_publish", why, f"Pass --engine embedded, or set {MERGED}")
        else:
            yield from _sglang_problems(view, chosen)

    return find


def _sglang_problems(view: View, chosen: str) -> Iterator[Problem]:
    """SGLang keeps adapters apart from weights, and lets requests in flight end with the adapter that they began with."""
    if view.chose("fully_async"):
        why = f"replaces weights in flight, and sglang ends requests with the adapter they began with ({chosen})"
        yield view.problem("fully_async", why, f"Set {MERGED}, or pass --engine embedded")
    others = [name for name in view["lora_targets"] if name not in SGLANG_LAYERS]
    if others:
        why = f"names {', '.join(others)}, and sglang takes adapters ({chosen}) of {', '.join(SGLANG_LAYERS)}"
        yield view.problem("lora_targets", why, f"Leave --lora-targets out, or set {MERGED}")
    if view["check_weight_update"]:
        why = f"compares whole weights, and with {chosen} sglang keeps adapters apart from them"
        yield view.problem("check_weight_update", why, f"Leave --check-weight-update out, or set {MERGED}")
    if view["eval_num_gpus"]:
        why = f"brings whole weights to engines that sglang starts for adapters ({chosen})"
        yield view.problem("eval_num_gpus", why, f"Leave --eval-num-gpus out, or set {MERGED}")
