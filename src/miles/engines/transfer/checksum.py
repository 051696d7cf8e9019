"""Checksums of weights as SGLang's ``/weights_checker`` counts them, and what a tensor of an engine is made of.

SGLang keeps some of a checkpoint's tensors in one (query, key and value; gate and up) and pads a vocabulary to a multiple of 64.
"""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

VOCAB_MULTIPLE = 64
JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
VOCAB_TENSORS = ("embed_tokens.weight", "lm_head.weight")


def checksum(tensor: Tensor) -> str:
    """16 hexadecimal digits of a tensor's bytes: the first eight of its SHA-256; on a GPU SGLang's own sum."""
    if tensor.is_cuda:
        from sglang.srt.layers.multimodal import gpu_tensor_hash

        return f"{gpu_tensor_hash(tensor):016x}"
    octets = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(octets.data).digest()[:8].hex()


def overall_checksum(checksums: Mapping[str, str]) -> str:
    """One for all tensors of a rank."""
    whole = hashlib.sha256()
    for name in sorted(checksums):
        whole.update(name.encode())
        whole.update(checksums[name].encode())
    return whole.hexdigest()


def parts_of(name: str) -> tuple[str, ...]:
    """The checkpoint's tensors that an engine's tensor ``name`` is made of, in order."""
    for joined, parts in JOINED.items():
        if f".{joined}." in name:
            return tuple(name.replace(f".{joined}.", f".{part}.") for part in parts)
    return (name,)


def possible_checksums(name: str, parts: list[Tensor]) -> list[str]:
    """Of an engine's tensor that is right; a vocabulary counts with and without padding."""
    tensor = parts[0] if len(parts) == 1 else torch.cat(parts)
    found = [checksum(tensor)]
    missing = -tensor.shape[0] % VOCAB_MULTIPLE if name.endswith(VOCAB_TENSORS) else 0
    if missing:
        found.append(checksum(F.pad(tensor, (0, 0, 0, missing))))
    return found
