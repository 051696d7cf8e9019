"""How much memory a run needs on each device, by rules that the plan states; an estimate, made before anything is loaded."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from miles.config.derived import Derived, shares_critic
from miles.config.facts import read_model_config
from miles.config.model_size import ModelSize, model_size
from miles.config.resolution import Resolution

BYTES = {"float32": 4, "bfloat16": 2}
MASTER_BYTES = 4  # weights and gradients of the optimiser are float32 whatever the forward pass uses
ADAM_BYTES = 8  # two float32 moments
LOGIT_BYTES = 8  # a float32 logit and its gradient
REFERENCE_BYTES = 4  # the weights that KL terms compare with
GIB = 2**30
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by what takes them, and the rule for each.

    policy, engine: of one trainer rank, of one device of an engine that is started; empty where none is.
    critic: of one rank of a critic that has its own.
    host, critic_host: what of a rank is in host memory instead.
    rules: the same keys.
    """

    parameters: int
    policy: Mapping[str, int]
    engine: Mapping[str, int]
    host: Mapping[str, int]
    rules: Mapping[str, str]
    critic: Mapping[str, int] = field(default_factory=dict)
    critic_host: Mapping[str, int] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """The estimate in words, every number with its rule."""
        yield f"estimated from config.json: {spell_count(self.parameters)} parameters"
        places = (
            ("each trainer rank", self.policy),
            ("host memory for each trainer rank", self.host),
            ("each rank of the critic", self.critic),
            ("host memory for each rank of the critic", self.critic_host),
            ("each engine device", self.engine),
        )
        for name, parts in ((name, parts) for name, parts in places if parts):
            yield f"{name}: {spell_bytes(sum(parts.values()))}"
            for part, size in parts.items():
                yield f"  {part} {spell_bytes(size)}: {self.rules[part]}"


def estimate(resolution: Resolution[Any]) -> Memory | None:
    """The memory of a configuration; None where the model's ``config.json`` does not tell its size."""
    config, derived = resolution.config, resolution.derived
    size = model_size(read_model_config(config.model.hf_checkpoint))
    if size is None:
        return None
    number = BYTES[config.model.dtype]
    tokens = derived.max_tokens_per_gpu or (derived.micro_batch_size or 1) * derived.max_context_len
    checkpointed = config.model.gradient_checkpointing
    rank = config.lora.lora_rank
    adapters = 0 if rank is None else size.adapter_parameters(rank, config.lora.lora_targets)
    moving = size.parameters if rank is None else adapters
    trained = {
        "weights": MASTER_BYTES * (size.parameters + adapters) // derived.num_ranks,
        "gradients": MASTER_BYTES * moving // derived.num_ranks,
        "optimiser": ADAM_BYTES * moving // derived.num_ranks,
    }
    offloaded = config.optimizer.optimizer_cpu_offload
    policy = ({} if offloaded else trained) | {
        "activations": number * tokens * _kept(size, checkpointed=checkpointed),
        "logits": LOGIT_BYTES * tokens * (config.optimizer.vocab_chunk_size or size.vocabulary),
    }
    host = trained if offloaded else {}
    if has_reference(resolution):
        (host if offloaded else policy)["reference"] = REFERENCE_BYTES * size.parameters // derived.num_ranks
    whole = (2 * MASTER_BYTES + ADAM_BYTES) * size.parameters
    if derived.schedule != "sft" and shares_critic(config, derived):
        (host if offloaded else policy)["critic"] = whole // derived.num_ranks
    critic: dict[str, int] = {}
    critic_host: dict[str, int] = {}
    if derived.num_critic_ranks:
        (critic_host if offloaded else critic)["value model"] = whole // derived.num_critic_ranks
        critic["value activations"] = policy["activations"]
    return Memory(
        size.parameters, policy, _engine(resolution, size, number), host, _rules(resolution, tokens), critic, critic_host
    )


def has_reference(resolution: Resolution[Any]) -> bool:
    """Whether a KL term keeps a second model; a policy with adapters is its own reference."""
    if resolution.derived.schedule == "sft":
        return False
    config = resolution.config
    own = config.lora.lora_rank is not None and config.model.ref_load is None
    return (config.algorithm.use_kl_loss or config.algorithm.kl_coef > 0) and not own


def _kept(size: ModelSize, *, checkpointed: bool) -> int:
    """Numbers that one token keeps for the backward pass: of every layer, or of one and the inputs of all."""
    if checkpointed:
        return size.layers * size.hidden + size.kept_values_per_token
    return size.layers * size.kept_values_per_token


def _engine(resolution: Resolution[Any], size: ModelSize, number: int) -> dict[str, int]:
    derived = resolution.derived
    if not derived.num_engines:
        return {}
    devices = resolution.config.placement.rollout_num_gpus_per_engine
    slots = resolution.config.engine.engine_max_running_requests if derived.engine == "embedded" else 1
    cache = number * size.cache_values_per_token * derived.max_context_len * slots
    return {"engine weights": number * size.parameters // devices, "KV cache": cache // devices}


def _rules(resolution: Resolution[Any], tokens: int) -> dict[str, str]:
    derived, model = resolution.derived, resolution.config.model
    trained = "" if resolution.config.lora.lora_rank is None else " of the adapters"
    split = f", over {derived.num_ranks} ranks" if derived.num_ranks > 1 else ""
    kept = "inputs of all layers and one layer in full" if model.gradient_checkpointing else "all layers"
    chunk = resolution.config.optimizer.vocab_chunk_size
    packed = ", rows end to end" if derived.packing == "varlen" else ""
    activations = f"{tokens} tokens in one forward pass{packed}, {kept}, {model.dtype}, no attention scores"
    return {
        "weights": f"4 bytes each{split}",
        "gradients": f"4 bytes each{trained}{split}",
        "optimiser": f"AdamW, 8 bytes each{trained}{split}",
        "activations": activations,
        "logits": f"{tokens} tokens × {chunk or 'vocabulary'} × 8 bytes, if every token is trained",
        "reference": f"4 bytes each{split}",
        "critic": f"weights, gradients and AdamW of a model of this size, 16 bytes each{split}",
        **(_critic_rules(derived, activations) if derived.num_critic_ranks else {}),
        **(_engine_rules(resolution) if derived.num_engines else {}),
    }


def _critic_rules(derived: Derived, activations: str) -> dict[str, str]:
    """Of a critic on ranks of its own."""
    split = f", over {derived.num_critic_ranks} ranks" if derived.num_critic_ranks > 1 else ""
    whole = f"weights, gradients and AdamW of a model of this size, 16 bytes each{split}"
    return {"value model": whole, "value activations": activations}


def _engine_rules(resolution: Resolution) -> dict[str, str]:
    devices = resolution.config.placement.rollout_num_gpus_per_engine
    over = f", over {devices} GPUs" if devices > 1 else ""
    return {
        "engine weights": f"{BYTES[resolution.config.model.dtype]} bytes each{over}",
        "KV cache": _cache_rule(resolution, resolution.derived) + over,
    }


def _cache_rule(resolution: Resolution, derived: Derived) -> str:
    if derived.engine == "embedded":
        slots = resolution.config.engine.engine_max_running_requests
        return f"{slots} slots × {derived.max_context_len} tokens, allocated at start"
    return f"one request of {derived.max_context_len} tokens at least; SGLang takes what --mem-fraction-static leaves"


def spell_bytes(size: int) -> str:
    """``3.2 GiB``, ``118 MiB``."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB" if size >= MIB else f"{size / 1024:.1f} KiB"


def spell_count(number: int) -> str:
    """``0.4 M``, ``596 M``, ``30.5 B``."""
    if number >= 10**9:
        return f"{number / 1e9:.1f} B"
    return f"{number / 1e6:.0f} M" if number >= 10**7 else f"{number / 1e6:.1f} M"
