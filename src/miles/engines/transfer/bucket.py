"""A part of the weights: named tensors end to end in one run of bytes, which travels as one.

The layout is SGLang's ``flattened_bucket``: no gaps, so tensors of wider types come first and every one is aligned.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from miles.engines.transfer.specs import TensorSpec


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors in the order of ``specs`` in ``flat`` [bytes], uint8."""

    specs: tuple[TensorSpec, ...]
    flat: Tensor

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return self.flat.numel()

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Names and views into ``flat``."""
        views, start = [], 0
        for spec in self.specs:
            part = self.flat[start : start + spec.num_bytes]
            views.append((spec.name, part.view(getattr(torch, spec.dtype)).view(spec.shape)))
            start += spec.num_bytes
        return views

    def to(self, device: torch.device | str) -> "Bucket":
        """The same on a device; itself where it is there already."""
        return Bucket(self.specs, self.flat.to(device))


def empty_bucket(specs: Sequence[TensorSpec], device: torch.device | str = "cpu", *, shared: bool = False) -> Bucket:
    """Room for tensors; ``shared`` puts it where another process can map it.

    Raises:
        ValueError: there are none, or one has a negative size, an unknown type, or would not be aligned.
    """
    start = 0
    for spec in specs:
        if min(spec.shape, default=0) < 0:
            raise ValueError(f"{spec.name} has shape {spec.shape}")
        if start % spec.element_bytes:
            raise ValueError(f"{spec.name} would begin at byte {start}, which is no multiple of the size of {spec.dtype}")
        start += spec.num_bytes
    if not specs:
        raise ValueError("a bucket holds at least one tensor")
    flat: Any = torch.empty(start, dtype=torch.uint8, device=device)
    return Bucket(tuple(specs), flat.share_memory_() if shared else flat)


def filled_bucket(named: Iterable[tuple[str, Tensor]], device: torch.device | str = "cpu", *, shared: bool = False) -> Bucket:
    """A bucket with copies of tensors."""
    tensors = dict(sorted(named, key=lambda pair: -pair[1].dtype.itemsize))
    specs = [TensorSpec(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in tensors.items()]
    bucket = empty_bucket(specs, device, shared=shared)
    for name, room in bucket.tensors():
        room.copy_(tensors[name])
    return bucket
