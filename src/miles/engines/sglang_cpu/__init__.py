"""SGLang on a plain CPU: the platform that sglang finds through its own entry-point group ``sglang.srt.platforms``.

sglang runs there unmodified once a platform says that the device is the CPU, attention is torch's own, and nothing is
compiled. :func:`activate` is the entry point ``miles_cpu``; it must stay cheap to import, since sglang calls it in every
process and on every machine where miles is installed.
"""

import os

PLATFORM = "miles_cpu"
PLATFORM_CLASS = "miles.engines.sglang_cpu.platform:TorchCpuPlatform"


def activate() -> str | None:
    """Where the platform's class is, or None where the machine has something better.

    On a machine with CUDA, or where sglang's own CPU kernels were asked for (``SGLANG_USE_CPU_ENGINE=1``), sglang is left
    alone unless ``SGLANG_PLATFORM`` names this platform.
    """
    is_chosen = os.environ.get("SGLANG_PLATFORM") == PLATFORM
    if not is_chosen and os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        return None
    import torch

    if torch.cuda.is_available() and not is_chosen:
        return None
    from miles.engines.sglang_cpu.absent_vision import stand_in_for_torchvision

    stand_in_for_torchvision()
    return PLATFORM_CLASS
