"""Published weights held for longer than until the next publication: an HF folder, tokenizer included."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from miles.errors import EngineError
from miles.weights.disk import WeightExporter

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".index.json")


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Takes snapshots of the policy's weights.

    model: the folder that the run starts with; it has the tokenizer, and it is version 0 unless the run ``begins_elsewhere``.
    folder: where snapshots go.
    """

    policy: WeightExporter
    model: Path
    folder: Path
    begins_elsewhere: bool = False

    async def take(self, version: int) -> Path:
        """A folder ``version-N`` that transformers and engines load; to be called while the policy's weights are that version.

        Raises:
            EngineError: the folder cannot be written.
        """
        target, is_model = self.folder / f"version-{version}", version == 0 and not self.begins_elsewhere
        try:
            if not is_model:
                await self.policy.export_weights(target)
            target.mkdir(parents=True, exist_ok=True)
            self._add_companions(target, with_weights=is_model)
        except OSError as error:
            raise EngineError(f"no snapshot of weights version {version} can be made in {target}: {error}") from error
        return target

    def lend(self, held: Path, name: str) -> Path:
        """The same files once more, for whoever may move or remove them; costs no copy.

        Raises:
            EngineError: the folder cannot be written.
        """
        target = self.folder / name / held.name
        try:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(held, target, symlinks=True, copy_function=os.link)
        except OSError as error:
            raise EngineError(f"no snapshot can be made in {target}: {error}") from error
        return target

    def _add_companions(self, target: Path, *, with_weights: bool) -> None:
        """Links to what the model's folder holds beside the weights, and to the weights themselves of version 0."""
        for file in self.model.absolute().iterdir():
            wanted = file.is_file() and (with_weights or not file.name.endswith(WEIGHT_SUFFIXES))
            if wanted and not (target / file.name).exists():
                (target / file.name).symlink_to(file)


class InPlace:
    """The exporter of a publisher whose folder is filled already."""

    async def export_weights(self, folder: Path) -> None:
        """Nothing to write."""
