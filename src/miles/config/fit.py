"""Whether a plan fits: the estimate held against the memory of this machine's devices, or of those that a user states.

estimate (memory.py) ──────────────needs──►┐
nvidia-smi, host, --gpu-memory-gib ──has──►┴──► one Fit for each place, and where it is too small a warning with the ways out
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles.config.devices import Gpu
from miles.config.memory import GIB, Memory, spell_bytes
from miles.config.options.placement import Colocated, Disaggregated
from miles.config.registry import option_table
from miles.config.resolution import Resolution

TRAINED = ("weights", "gradients", "optimiser", "reference", "critic")  # stay between two steps
MORE_RANKS, MORE_OF_CRITIC = "actor_num_gpus_per_node", "critic_num_gpus_per_node"
LESS_KEPT = ("gradient_checkpointing", "max_tokens_per_gpu", "dtype")
WAYS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(TRAINED, (MORE_RANKS, "optimizer_cpu_offload")),
    "value model": (MORE_OF_CRITIC, "optimizer_cpu_offload"),
    **dict.fromkeys(("activations", "value activations"), LESS_KEPT),
    "logits": ("vocab_chunk_size", "max_tokens_per_gpu"),
    "engine weights": ("rollout_num_gpus_per_engine", "dtype"),
    "KV cache": ("engine_max_running_requests", "rollout_max_context_len"),
}
NOT_ON_A_CPU = (MORE_RANKS, MORE_OF_CRITIC, "optimizer_cpu_offload", "rollout_num_gpus_per_engine")
NAMED_PARTS = 2  # the largest, whose options are named


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to put a run on; memory in bytes.

    gpu: of the smallest device; None where it is not known.
    num_gpus: None likewise.
    host: main memory.
    gpu_source: who says so (``nvidia-smi``, ``--gpu-memory-gib``).
    """

    host: int
    gpu: int | None = None
    num_gpus: int | None = None
    gpu_source: str = ""


@dataclass(frozen=True, slots=True)
class Fit:
    """One place of the run against what it has.

    needed, has: bytes.
    parts: what needs it.
    """

    place: str
    needed: int
    has: int
    device: str
    parts: Mapping[str, int]

    @property
    def is_enough(self) -> bool:
        """Whether it fits, as far as the estimate goes."""
        return self.needed <= self.has

    def line(self) -> str:
        """``each trainer rank: 50.1 of 140.4 GiB of a GPU (nvidia-smi)``."""
        verdict = "fits" if self.is_enough else "does not fit"
        return f"{verdict}: {self.place}, {spell_bytes(self.needed)} of the {spell_bytes(self.has)} of {self.device}"


def machine_of(gpus: Sequence[Gpu] | None, host: int, gpu_memory_gib: float | None) -> Machine:
    """The machine as it is, or with GPUs of the size that the user states."""
    if gpu_memory_gib is not None:
        return Machine(host, int(gpu_memory_gib * GIB), None, "--gpu-memory-gib")
    if not gpus:
        return Machine(host)
    return Machine(host, min(gpu.total for gpu in gpus), len(gpus), "nvidia-smi")


def fits_of(memory: Memory, resolution: Resolution[Any], machine: Machine) -> tuple[Fit, ...]:
    """Every place whose memory is known against what it needs; empty on a cluster that is joined, whose machines are not."""
    if resolution.config.cluster.ray_address is not None and machine.gpu_source != "--gpu-memory-gib":
        return ()
    if resolution.derived.device == "cpu":
        return (_on_host(memory, resolution, machine),)
    found = list(_on_gpus(memory, resolution, machine)) if machine.gpu is not None else []
    if memory.host and machine.gpu_source != "--gpu-memory-gib":
        ranks, own = resolution.config.placement.actor_num_gpus_per_node, resolution.derived.num_critic_ranks
        parts = {part: size * ranks for part, size in memory.host.items()}
        parts |= {part: size * own for part, size in memory.critic_host.items()}
        place = "the ranks of policy and critic" if own else "the trainer ranks of a node"
        found.append(Fit(place, sum(parts.values()), machine.host, "its main memory", parts))
    return tuple(found)


def shortage(resolution: Resolution[Any], machine: Machine) -> str:
    """Why a run could not start on this machine alone: GPUs that it has not; empty where it could, or that is not known."""
    is_alone = resolution.derived.device == "cuda" and resolution.config.cluster.ray_address is None
    needed = _gpus_of_a_node(resolution)
    if not is_alone or machine.num_gpus is None or needed <= machine.num_gpus:
        return ""
    more = "--critic-num-gpus-per-node, " if resolution.derived.num_critic_ranks else ""
    ways = f"Lower {more}--actor-num-gpus-per-node or --rollout-num-gpus, or join a larger cluster with --ray-address"
    return f"the run needs {needed} GPU (this machine has {machine.num_gpus}). {ways}."


def warnings_of_fit(fits: Sequence[Fit], resolution: Resolution[Any]) -> Iterator[str]:
    """What cannot be, by the estimate, each with the options that lower it."""
    for fit in fits:
        if not fit.is_enough:
            what = f"{fit.place}: about {spell_bytes(fit.needed)} are needed, and {fit.device} has {spell_bytes(fit.has)}"
            ways = ", ".join(ways_to_lower(fit.parts, resolution))
            yield f"{what}. Lower it with {ways}" if ways else what


def ways_to_lower(parts: Mapping[str, int], resolution: Resolution[Any]) -> Iterator[str]:
    """Flags that make the largest parts smaller, those left out that are used already."""
    largest = sorted(parts, key=lambda part: parts[part], reverse=True)[:NAMED_PARTS]
    values = {
        name: value for section in type(resolution.config).model_fields for name, value in getattr(resolution.config, section)
    }
    for name in dict.fromkeys(name for part in largest for name in WAYS[part]):
        option = option_table()[name]
        if name not in values or (option.shape.scalar is bool and values[name]):
            continue
        if name == "dtype" and values[name] == "bfloat16":
            continue
        if resolution.derived.device == "cpu" and name in NOT_ON_A_CPU:
            continue
        if name == "engine_max_running_requests" and resolution.derived.engine != "embedded":
            continue
        yield f"{option.flag} bfloat16" if name == "dtype" else option.flag


def _on_host(memory: Memory, resolution: Resolution[Any], machine: Machine) -> Fit:
    """Ranks and engines are processes of one machine."""
    derived = resolution.derived
    ranks, critics, engines = derived.num_ranks, derived.num_critic_ranks, derived.num_engines
    parts = {part: size * ranks for part, size in (*memory.policy.items(), *memory.host.items())}
    parts |= {part: size * critics for part, size in (*memory.critic.items(), *memory.critic_host.items())}
    parts |= {part: size * engines for part, size in memory.engine.items()}
    return Fit(_processes(ranks, critics, engines), sum(parts.values()), machine.host, "this machine", parts)


def _processes(ranks: int, critics: int, engines: int) -> str:
    counts = {"trainer rank": ranks, "critic rank": critics, "engine": engines}
    *most, last = [f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count]
    return f"{', '.join(most)} and {last}" if most else last


def _on_gpus(memory: Memory, resolution: Resolution[Any], machine: Machine) -> Iterator[Fit]:
    has = machine.gpu or 0
    device = f"a GPU ({machine.gpu_source})"
    placement = resolution.config.placement
    if memory.critic:
        yield Fit("each rank of the critic", sum(memory.critic.values()), has, device, memory.critic)
    if not isinstance(placement, Colocated):
        for place, parts in (("each trainer rank", memory.policy), ("each engine device", memory.engine)):
            if parts:
                yield Fit(place, sum(parts.values()), has, device, parts)
        return
    training = {**memory.policy, **({} if placement.offload_rollout else memory.engine)}
    kept = {part: size for part, size in memory.policy.items() if part in TRAINED}
    sampling = {**({} if placement.offload_train else kept), **memory.engine}
    for place, parts in (("each device while it trains", training), ("each device while it samples", sampling)):
        yield Fit(place, sum(parts.values()), has, device, parts)


def _gpus_of_a_node(resolution: Resolution[Any]) -> int:
    """GPUs that a run on this machine alone needs."""
    placement, derived = resolution.config.placement, resolution.derived
    engines = placement.rollout_num_gpus if isinstance(placement, Disaggregated) else 0
    return derived.num_ranks + derived.num_critic_ranks + engines
