"""Weights as a folder that policy and engines can both read: shared memory on one host, or a shared file system."""

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from miles.engines.weight_calls import Landing, load_adapter
from miles.weights.transport import Engines


class WeightExporter(Protocol):
    """The policy, as far as a folder needs it."""

    async def export_weights(self, folder: Path) -> None:
        """Write the weights as an HF safetensors folder, which appears whole."""
        ...


class AdapterExporter(Protocol):
    """A policy with LoRA adapters."""

    async def export_adapters(self, folder: Path) -> None:
        """Write the adapters alone, in peft's format, as a folder which appears whole."""
        ...


class FolderTransport:
    """A folder for each version below ``folder``, filled by ``write``; how engines take it is for those that derive from it."""

    needs_policy = False

    def __init__(self, write: Callable[[Path], Awaitable[None]], folder: Path) -> None:
        self._write, self._folder = write, folder

    async def stage(self, version: int) -> int:
        """Write the folder."""
        path = self._path(version)
        await self._write(path)
        return sum(file.stat().st_size for file in path.glob("*.safetensors"))

    async def join(self, engines: Engines) -> None:
        """Nothing: they read files."""

    async def settle(self, version: int) -> None:
        """The newest folder stays; those before it go."""
        for older in self._folder.glob("version-*"):
            if older != self._path(version):
                shutil.rmtree(older)

    async def part(self, engines: Engines) -> list[str]:
        """Nothing: no engine holds on to the policy."""
        return []

    def _path(self, version: int) -> Path:
        return self._folder / f"version-{version}"


class DiskTransport(FolderTransport):
    """Whole weights."""

    def __init__(self, policy: WeightExporter, folder: Path) -> None:
        super().__init__(policy.export_weights, folder)

    async def update(self, version: int, engines: Engines, *, flushes: bool) -> None:
        """Have engines read the folder."""
        path = str(self._path(version))
        await engines.on_all(lambda client: client.update_weights_from_disk(path, version, flushes=flushes))


class AdapterTransport(FolderTransport):
    """Adapters alone; engines have the weights beside them from their start, one that comes back included."""

    def __init__(self, policy: AdapterExporter, folder: Path) -> None:
        super().__init__(policy.export_adapters, folder)

    async def update(self, version: int, engines: Engines, *, flushes: bool) -> None:
        """Have engines put the adapters in the place of those before."""
        path, landing = str(self._path(version)), Landing(version, flushes)
        await engines.on_all(lambda client: load_adapter(client, path, landing))
