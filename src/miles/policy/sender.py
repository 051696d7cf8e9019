"""The sending end of publishing, on every trainer rank: weights are gathered bucket by bucket and leave from rank 0.

    stage ──► payloads (shared memory)   ──► engine
          └─► broadcast (process group)  ──► engine

What is staged is one version, in host memory, and stays until the next one is staged and published: an engine that comes back
gets it, whatever the policy has learned since. A device holds one bucket at a time. Over CUDA handles nothing is staged:
every rank gathers a bucket when it is asked for and shares its own copy, since an engine's rank maps memory of its own GPU.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from miles.engines.transfer.bucket import Bucket, filled_bucket
from miles.engines.transfer.checksum import parts_of, possible_checksums
from miles.engines.transfer.group import UpdateGroup, listen_for_group
from miles.engines.transfer.payload import cuda_handles_by_uuid, pack_tensors, shared_by_name
from miles.engines.transfer.specs import TensorSpec
from miles.errors import PolicyError
from miles.policy.adapters import adapted_layers
from miles.policy.export import planned_buckets, untied_weights, whole_weight
from miles.policy.ranks import Ranks

SHARED_MEMORY = Path("/dev/shm")
Specs = tuple[TensorSpec, ...]


class WeightSender:
    """One rank's part. Methods with ``all ranks`` in their first line must be called on every rank; the others on rank 0."""

    def __init__(self, causal_lm: Any, ranks: Ranks, dtype: str = "float32") -> None:
        """``dtype`` is what the engines compute in, and what travels."""
        self._causal_lm, self._ranks, self._dtype = causal_lm, ranks, getattr(torch, dtype)
        self._adapted = adapted_layers(causal_lm)
        self._staged: dict[int, list[Bucket]] = {}
        self._plan: list[list[str]] = []
        self._held: Bucket | None = None
        self._stores: dict[str, Any] = {}
        self._groups: dict[str, UpdateGroup] = {}

    def stage(self, version: int, bucket_bytes: int, *, shared: bool, on_device: bool) -> list[Specs]:
        """All ranks: get ready to send the weights as ``version``; what each bucket holds.

        Args:
            version: the weights' number.
            bucket_bytes: of a bucket, but for a tensor that is larger.
            shared: stage where other processes of the host can map it.
            on_device: stage nothing, see above.

        Raises:
            PolicyError: names on disk differ from those in memory, or shared memory is full.
        """
        if getattr(self._causal_lm, "_weight_conversions", None):
            kind = type(self._causal_lm).__name__
            raise PolicyError(f"the weights of {kind} have other names on disk: use --update-weight-transfer-mode disk.")
        self._plan = planned_buckets(self._causal_lm, bucket_bytes)
        if on_device:
            return [self._specs_of(names) for names in self._plan]
        if shared and self._ranks.index == 0:
            self._refuse_full_memory()
        with shared_by_name():
            buckets = [bucket for names in self._plan if (bucket := self._gathered(names, "cpu", shared=shared)) is not None]
        self._staged[version] = buckets
        return [bucket.specs for bucket in buckets]

    def keep_only(self, version: int) -> None:
        """All ranks: forget what was staged before."""
        self._staged = {kept: buckets for kept, buckets in self._staged.items() if kept == version}
        self._held = None

    def payloads(self, version: int, bucket: int, count: int) -> list[str]:
        """So many handles to a staged bucket, one for each receiver."""
        named = self._staged[version][bucket].tensors()
        return [pack_tensors(named) for _ in range(count)]

    def device_payload(self, bucket: int) -> str:
        """All ranks: a handle to this rank's own copy of a bucket, which is kept until the next is asked for."""
        cuda_handles_by_uuid()
        self._held = self._gathered(self._plan[bucket], torch.device("cuda"), shared=False, everywhere=True)
        if self._held is None:
            raise PolicyError(f"bucket {bucket} of the weights is empty on rank {self._ranks.index}.")
        torch.cuda.synchronize()
        return pack_tensors(self._held.tensors())

    def listen(self, group: str, host: str, size: int, timeout_seconds: float) -> int:
        """Begin a group with an engine; the port where its ranks find this one."""
        self._stores[group] = listen_for_group(host, size, timeout_seconds)
        return int(self._stores[group].port)

    def join(self, group: str, size: int, backend: str, timeout_seconds: float) -> None:
        """Wait until the engine's ranks are in the group.

        Raises:
            PolicyError: they did not come.
        """
        try:
            self._groups[group] = UpdateGroup(group, self._stores.pop(group), 0, size, backend, timeout_seconds)
        except RuntimeError as error:
            raise PolicyError(f"the engine did not join the group {group}: {error}") from error

    def leave(self, group: str) -> None:
        """End a group; an engine that waits for it gets an error."""
        self._stores.pop(group, None)
        ended = self._groups.pop(group, None)
        if ended is not None:
            ended.leave()

    def broadcast(self, version: int, bucket: int, groups: Sequence[str]) -> dict[str, str]:
        """Send a staged bucket to the engines of all groups at once; the words of those that failed, by group."""
        flat, works, failures = self._staged[version][bucket].flat, {}, {}
        if any(self._groups[group].is_on_gpus for group in groups):
            flat = flat.cuda()
        for group in groups:
            try:
                works[group] = self._groups[group].broadcast(flat)
            except RuntimeError as error:
                failures[group] = str(error)
        for group, work in works.items():
            try:
                work.wait()
            except RuntimeError as error:
                failures[group] = str(error)
        if flat.is_cuda:
            torch.cuda.synchronize()
        return failures

    def checksums(self, names: Sequence[str]) -> dict[str, list[str]]:
        """All ranks: for each tensor of an engine, the checksums it may have; none where the policy knows no such tensor."""
        weights = untied_weights(self._causal_lm)
        found: dict[str, list[str]] = {}
        for name in names:
            parts = parts_of(name)
            if not all(part in weights for part in parts):
                found[name] = []
                continue
            tensors = [self._as_sent(part, weights[part]) for part in parts]
            found[name] = possible_checksums(name, tensors) if self._ranks.index == 0 else []
        return found

    def _gathered(
        self, names: Sequence[str], device: torch.device | str, *, shared: bool, everywhere: bool = False
    ) -> Bucket | None:
        """All ranks gather; rank 0, or every one, holds the bucket."""
        weights = untied_weights(self._causal_lm)
        gathered = [(name, self._as_sent(name, weights[name])) for name in names]
        if self._ranks.index and not everywhere:
            return None
        return filled_bucket(gathered, device, shared=shared)

    def _as_sent(self, name: str, tensor: Tensor) -> Tensor:
        """All ranks: the whole tensor in the engines' number type, its adapter merged."""
        return whole_weight(name, tensor, self._adapted).to(self._sent_dtype(tensor))

    def _sent_dtype(self, tensor: Tensor) -> torch.dtype:
        return self._dtype if tensor.is_floating_point() else tensor.dtype

    def _specs_of(self, names: Sequence[str]) -> Specs:
        """Of a bucket that is gathered later; order and layout are the sender's and the receiver's own affair."""
        weights = untied_weights(self._causal_lm)
        return tuple(
            TensorSpec(name, str(self._sent_dtype(weights[name])).removeprefix("torch."), tuple(weights[name].shape))
            for name in names
        )

    def _refuse_full_memory(self) -> None:
        """Writing to shared memory that is full kills the process; ask first."""
        needed = sum(tensor.numel() * tensor.element_size() for tensor in untied_weights(self._causal_lm).values())
        free = psutil.disk_usage(str(SHARED_MEMORY)).free if SHARED_MEMORY.is_dir() else needed
        if free < needed:
            raise PolicyError(
                f"the weights take {needed >> 20} MiB of shared memory and {free >> 20} MiB are free in {SHARED_MEMORY}. "
                "Enlarge it, or use --update-weight-transfer-mode broadcast."
            )
