"""The platform itself; imported by sglang alone."""

from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform


class TorchCpuPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc] # sglang is not there when types are checked
    """Plain PyTorch on the CPU: no sgl_kernel, no AMX, no compilation."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def get_device(self, device_id: int = 0) -> str:
        """The one device there is."""
        return "cpu"

    def get_default_attention_backend(self) -> str:
        """The scaled dot-product attention of torch itself."""
        return "torch_native"

    def get_compile_backend(self, mode: str | None = None) -> str:
        """Nothing is compiled."""
        return "eager"

    def get_dispatch_key_name(self) -> str:
        """The implementation of each layer that is written in torch."""
        return "native"

    def init_backend(self) -> None:
        """Give host buffers (routed experts, hierarchical cache) plain memory: sglang pins theirs through CUDA."""
        from sglang.srt.mem_cache.pool_host import common

        common.ALLOC_MEMORY_FUNCS["cpu"] = plain_memory


def plain_memory(dims: Any, dtype: torch.dtype, device: str = "cpu", *_: Any, **__: Any) -> torch.Tensor:
    """An uninitialised tensor in memory that is not pinned; sglang passes more, which only pinned memory needs."""
    return torch.empty(dims, dtype=dtype, device="cpu")
