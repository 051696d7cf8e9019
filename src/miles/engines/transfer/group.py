"""The process group between a policy's first rank (0) and the ranks of one engine (1 …), over gloo or NCCL.

It is built as SGLang builds its own, so that the two ends find each other; it is known to nobody but its owner.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.distributed_c10d import Backend, BackendConfig, BroadcastOptions, PrefixStore

from miles.engines.transfer.bucket import Bucket

BACKENDS = ("gloo", "nccl")


def listen_for_group(host: str, size: int, timeout_seconds: float) -> Any:
    """Rank 0's store at a port that the system picks (``.port``); the others connect to it."""
    wait = timedelta(seconds=timeout_seconds)
    return dist.TCPStore(host, 0, size, is_master=True, timeout=wait, wait_for_workers=False)  # type: ignore[attr-defined]


def connect_to_group(host: str, port: int, size: int, timeout_seconds: float) -> Any:
    """The store of another process's rank 0.

    Raises:
        RuntimeError: nobody listens there.
    """
    wait = timedelta(seconds=timeout_seconds)
    return dist.TCPStore(host, port, size, is_master=False, timeout=wait, wait_for_workers=False)  # type: ignore[attr-defined]


class UpdateGroup:
    """A member of the group; the constructor returns when all ranks have joined.

    is_on_gpus: it sends and receives GPU memory.
    """

    def __init__(self, name: str, store: Any, rank: int, size: int, backend: str, timeout_seconds: float) -> None:
        """Join.

        Raises:
            RuntimeError: not all ranks came in time, or the network failed.
        """
        self.is_on_gpus = backend == "nccl"
        self._store = store  # the ranks find each other in it for as long as the group lasts
        wait = timedelta(seconds=timeout_seconds)
        device = next(iter(BackendConfig(Backend(backend)).get_device_backend_map()))  # torch makes one for all of them
        place = PrefixStore(f"{device}/", PrefixStore(f"{name}/", PrefixStore(name, store)))
        if not self.is_on_gpus:
            self._group: Any = dist.ProcessGroupGloo(place, rank, size, timeout=wait)
            return
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = wait
        self._group = dist.ProcessGroupNCCL(place, rank, size, options)

    def broadcast(self, tensor: Tensor) -> Any:
        """Begin to send ``tensor`` from rank 0, or to receive into it elsewhere; ``.wait()`` on what is returned."""
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        return self._group.broadcast([tensor], options)

    def receive(self, bucket: Bucket, *, flattened: bool) -> None:
        """Fill a bucket with what rank 0 sends, as one run of bytes or tensor by tensor.

        Raises:
            RuntimeError: rank 0 or the network failed, or nothing came in time.
        """
        parts: Sequence[Tensor] = [bucket.flat] if flattened else [tensor for _, tensor in bucket.tensors()]
        for work in [self.broadcast(part) for part in parts]:
            work.wait()
        if bucket.flat.is_cuda:
            torch.cuda.synchronize()

    def leave(self) -> None:
        """Close the connections; whoever waits for this rank gets an error."""
        self._group.shutdown()
        self._group = None
