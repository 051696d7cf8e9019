"""Weights as a folder that policy and engines can both read: shared memory on one host, or a shared file system."""

import shutil
from pathlib import Path
from typing import Protocol

from miles.weights.transport import Engines


class WeightExporter(Protocol):
    """The policy, as far as a folder needs it."""

    async def export_weights(self, folder: Path) -> None:
        """Write the weights as an HF safetensors folder, which appears whole."""
        ...


class DiskTransport:
    """A folder for each version below ``folder``."""

    needs_policy = False

    def __init__(self, policy: WeightExporter, folder: Path) -> None:
        self._policy, self._folder = policy, folder

    async def stage(self, version: int) -> int:
        """Write the folder."""
        path = self._path(version)
        await self._policy.export_weights(path)
        return sum(file.stat().st_size for file in path.glob("*.safetensors"))

    async def join(self, engines: Engines) -> None:
        """Nothing: they read files."""

    async def update(self, version: int, engines: Engines, *, flushes: bool) -> None:
        """Have engines read the folder."""
        path = str(self._path(version))
        await engines.on_all(lambda client: client.update_weights_from_disk(path, version, flushes=flushes))

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
