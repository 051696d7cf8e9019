"""Weights as an HF folder that transformers, SGLang and the embedded engine load.

Ranks gather one bucket of parameters at a time, which the first of them writes: nobody ever holds the whole model.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from miles.policy.adapters import adapted_layers, has_adapters, plain_state, update_of, write_adapters
from miles.policy.folders import written_aside
from miles.policy.ranks import OneRank, Ranks
from miles.policy.sharding import whole

WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
BUCKET_BYTES = 1 << 30


def export_weights(causal_lm: Any, folder: Path, ranks: Ranks | None = None) -> None:
    """Write config and weights for publishing: quickly, the folder appears whole, but not forced to the disk.

    With several ranks every one of them must call it; the folder is there when the call returns.

    Raises:
        OSError: the folder cannot be written.
    """
    ranks = ranks or OneRank()
    with written_aside(folder, durable=False) if ranks.index == 0 else nullcontext() as aside:
        write_weights(causal_lm, aside)
    ranks.wait()


def export_adapters(causal_lm: Any, folder: Path, ranks: Ranks | None = None) -> None:
    """The same for the adapters alone, in peft's format."""
    ranks = ranks or OneRank()
    with written_aside(folder, durable=False) if ranks.index == 0 else nullcontext() as aside:
        write_adapters(causal_lm, aside)
    ranks.wait()


def write_weights(causal_lm: Any, folder: Path | None, buckets: Iterable[dict[str, Tensor]] | None = None) -> None:
    """Write config and weights into ``folder``; None on ranks that only take part in the gathering.

    buckets: the weights; by default those that the model has now.
    """
    buckets = weight_buckets(causal_lm) if buckets is None else buckets
    if getattr(causal_lm, "_weight_conversions", None):  # names on disk differ from those in memory; transformers maps them
        state = {name: tensor for bucket in buckets for name, tensor in bucket.items()}
        if folder is not None:
            causal_lm.save_pretrained(folder, state_dict=state)
        return
    sizes: list[dict[str, int]] = []
    for bucket in buckets:
        if folder is not None:
            save_file(bucket, folder / _part_file(len(sizes)), metadata={"format": "pt"})
        sizes.append({name: tensor.nbytes for name, tensor in bucket.items()})
    if folder is not None:
        _name_parts(folder, sizes)
        (folder / "config.json").write_text(causal_lm.config.to_json_string())


def weight_buckets(causal_lm: Any, bucket_bytes: int = BUCKET_BYTES) -> Iterator[dict[str, Tensor]]:
    """The weights, whole and contiguous, in buckets of about ``bucket_bytes``; every rank must take all of them.

    Without the names that are tied to another one; loading ties them again. Adapters are merged.
    """
    weights, adapted = untied_weights(causal_lm), adapted_layers(causal_lm)
    for names in planned_buckets(causal_lm, bucket_bytes):
        yield {name: whole_weight(name, weights[name], adapted).contiguous() for name in names}


def whole_weight(name: str, tensor: Tensor, adapted: Mapping[str, Any]) -> Tensor:
    """A weight of all ranks together, its adapter merged; every rank must call it.

    adapted: ``adapted_layers`` of the model.
    """
    one = whole(tensor.detach())
    return one + update_of(adapted[name]) if name in adapted else one


def planned_buckets(causal_lm: Any, bucket_bytes: int) -> list[list[str]]:
    """The names of the weights, cut into buckets of at most ``bucket_bytes`` or one tensor; the same on every rank."""
    return cut(untied_weights(causal_lm), bucket_bytes)


def cut(weights: Mapping[str, Tensor], bucket_bytes: int) -> list[list[str]]:
    """Names of weights in their order, in buckets; only the sizes are looked at."""
    buckets: list[list[str]] = [[]]
    num_bytes = 0
    for name, tensor in weights.items():
        if buckets[-1] and num_bytes + tensor.nbytes > bucket_bytes:
            buckets.append([])
            num_bytes = 0
        buckets[-1].append(name)
        num_bytes += tensor.nbytes
    return buckets


def untied_weights(causal_lm: Any) -> dict[str, Tensor]:
    """The state dictionary without adapters and names that are tied to another one; of a spread model its slices."""
    state = plain_state(causal_lm) if has_adapters(causal_lm) else causal_lm.state_dict()
    tied = set(causal_lm.all_tied_weights_keys)
    return {name: tensor for name, tensor in state.items() if name not in tied}


def _part_file(number: int) -> str:
    return f"model-{number + 1:05d}.safetensors"


def _name_parts(folder: Path, sizes: list[dict[str, int]]) -> None:
    """One file gets the plain name, several get an index."""
    if len(sizes) == 1:
        (folder / _part_file(0)).rename(folder / WEIGHTS_FILE)
        return
    places = {name: _part_file(number) for number, part in enumerate(sizes) for name in part}
    index = {"metadata": {"total_size": sum(size for part in sizes for size in part.values())}, "weight_map": places}
    (folder / INDEX_FILE).write_text(json.dumps(index))
