"""A data buffer of your own for fully async: among groups of one version, those with the lowest rewards are trained first.

    miles train-async --fully-async --preset reverse --custom-async-data-buffer-path hardest_first:HardestFirst

``put`` must never block or refuse. ``take`` must hand out the oldest versions first: the staleness bound rests on it.
"""

from collections import Counter
from collections.abc import Mapping

from miles.types import Group, mean


class HardestFirst:
    """Finished groups; built without arguments, once per run."""

    def __init__(self) -> None:
        self._groups: list[Group] = []

    def put(self, group: Group) -> None:
        """Keep a finished group."""
        self._groups.append(group)

    def take(self, num_groups: int) -> list[Group]:
        """The groups of the oldest versions, the hardest of each first."""
        self._groups.sort(key=lambda group: (group.version_admitted, mean([sample.reward or 0.0 for sample in group.samples])))
        taken, self._groups = self._groups[:num_groups], self._groups[num_groups:]
        return taken

    def counts_by_version(self) -> Mapping[int, int]:
        """Groups held, by version."""
        return Counter(group.version_admitted for group in self._groups)

    def groups(self) -> list[Group]:
        """All groups held."""
        return list(self._groups)
