"""How the processes of several ranks find each other: rank 0 listens, the others are told where, torch does the rest."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from miles.config.commands import AnyConfig
from miles.policy.ranks import ProcessRanks

JOIN_SECONDS = 300.0
COLLECTIVE_SECONDS = 3600.0


def listen(host: str, num_ranks: int) -> Any:
    """The store of rank 0, on a port that the system picks (``.port``)."""
    wait = timedelta(seconds=JOIN_SECONDS)
    return TCPStore(host, 0, num_ranks, is_master=True, timeout=wait, wait_for_workers=False)


def join(store: Any, index: int, num_ranks: int, num_ranks_per_replica: int, device: str) -> ProcessRanks:
    """Enter the group of all ranks: gloo between CPUs, NCCL between GPUs.

    Args:
        store: of rank 0, or a client of it.
        index: of this rank.
        num_ranks: of all.
        num_ranks_per_replica: ranks that hold one copy of the policy together.
        device: ``cpu`` or ``cuda``.
    """
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    wait = timedelta(seconds=COLLECTIVE_SECONDS)
    dist.init_process_group(backend, store=store, rank=index, world_size=num_ranks, timeout=wait)
    return ProcessRanks(mesh_of(num_ranks, num_ranks_per_replica, device))


def group_of_one(config: AnyConfig, device: str) -> ProcessRanks | None:
    """The ranks of a policy on one: None where a plain model does.

    FSDP2 keeps float32 masters below a bfloat16 pass, and masters in host memory; it wants a group, so one rank is its own.
    """
    if config.model.dtype == "float32" and not config.optimizer.optimizer_cpu_offload:
        return None
    return join(HashStore(), 0, 1, 1, device)


def mesh_of(num_ranks: int, num_ranks_per_replica: int, device: str) -> DeviceMesh:
    """``shard`` where one copy takes all ranks, else ``replicate × shard``."""
    if num_ranks_per_replica == num_ranks:
        return init_device_mesh(device, (num_ranks,), mesh_dim_names=("shard",))
    shape = (num_ranks // num_ranks_per_replica, num_ranks_per_replica)
    return init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard"))


def connect(address: str, num_ranks: int) -> Any:
    """A client of the store at ``host:port``."""
    host, port = address.rsplit(":", 1)
    return TCPStore(host, int(port), num_ranks, is_master=False, timeout=timedelta(seconds=JOIN_SECONDS))


def leave() -> None:
    """Leave the group, if this process is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
