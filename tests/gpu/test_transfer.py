"""Weights between GPUs: CUDA handles to another process, and a group over NCCL.

pytest -m gpu tests/gpu/test_transfer.py
"""

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from miles.engines.transfer.bucket import empty_bucket, filled_bucket
from miles.engines.transfer.group import UpdateGroup, connect_to_group, listen_for_group
from miles.engines.transfer.payload import cuda_handles_by_uuid, pack_tensors, unpack_tensors

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
SPECS = filled_bucket([("a", torch.arange(6.0).view(2, 3)), ("b", torch.ones(5, dtype=torch.bfloat16))]).specs


@pytest.fixture(autouse=True)
def _gpus(request: pytest.FixtureRequest) -> None:
    wanted = 2 if "nccl" in request.node.name else 1
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < wanted:
        pytest.skip(f"needs {wanted} GPUs, and there are {found}")


@pytest.fixture
def pool() -> Iterator[Any]:
    """A process that is not this one's fork."""
    with multiprocessing.get_context("spawn").Pool(1) as started:
        yield started


def mapped(payload: str) -> list[Any]:
    """In another process: what a payload's tensors hold."""
    return [tensor.float().cpu().tolist() for _, tensor in unpack_tensors(payload)]


def received(port: int) -> list[Any]:
    """In another process: what rank 0 sends."""
    torch.cuda.set_device(1)
    group = UpdateGroup("g", connect_to_group("127.0.0.1", port, 2, 60.0), 1, 2, "nccl", 60.0)
    bucket = empty_bucket(SPECS, "cuda")
    group.receive(bucket, flattened=True)
    return [tensor.float().cpu().tolist() for _, tensor in bucket.tensors()]


def test_another_process_maps_gpu_memory(pool: Any) -> None:
    cuda_handles_by_uuid()
    bucket = filled_bucket([("a", torch.arange(6.0).view(2, 3)), ("b", torch.ones(5, dtype=torch.bfloat16))], "cuda")
    assert pool.apply(mapped, (pack_tensors(bucket.tensors()),)) == [[[0, 1, 2], [3, 4, 5]], [1] * 5]


def test_nccl_carries_a_bucket(pool: Any) -> None:
    store = listen_for_group("127.0.0.1", 2, 60.0)
    other = pool.apply_async(received, (store.port,))
    group = UpdateGroup("g", store, 0, 2, "nccl", 60.0)
    bucket = filled_bucket([("a", torch.arange(6.0).view(2, 3)), ("b", torch.ones(5, dtype=torch.bfloat16))], "cuda")
    group.broadcast(bucket.flat).wait()
    assert other.get(60) == [[[0, 1, 2], [3, 4, 5]], [1] * 5]
