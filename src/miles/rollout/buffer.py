"""The buffer: finished groups between the engines and the policy. Its bound limits admission, never ``put``."""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Protocol

from miles.errors import RolloutError
from miles.types import Group


class DataBuffer(Protocol):
    """What a buffer must do; yours is built without arguments (``--custom-async-data-buffer-path``).

    The staleness bound is held by pacing, which assumes that ``take`` hands out the oldest versions first; a batch of
    another order that breaks the bound ends the run with an error.
    """

    def put(self, group: Group) -> None:
        """Keep a finished group; called in order of completion, must not block or refuse."""
        ...

    def take(self, num_groups: int) -> list[Group]:
        """Hand out so many groups, never one twice; the buffer holds at least as many."""
        ...

    def counts_by_version(self) -> Mapping[int, int]:
        """Groups held, by ``version_admitted``."""
        ...

    def groups(self) -> list[Group]:
        """All groups held."""
        ...


class PacedBuffer:
    """Oldest version first, then in order of completion; time per group does not grow with the number held."""

    def __init__(self) -> None:
        self._by_version: dict[int, deque[Group]] = {}
        self._counts: Counter[int] = Counter()

    def put(self, group: Group) -> None:
        """Keep a finished group."""
        self._by_version.setdefault(group.version_admitted, deque()).append(group)
        self._counts[group.version_admitted] += 1

    def take(self, num_groups: int) -> list[Group]:
        """Hand out the oldest groups, in index order.

        Raises:
            RolloutError: there are fewer.
        """
        if num_groups > self._counts.total():
            raise RolloutError(f"the buffer holds {self._counts.total()} groups, not {num_groups}")
        return sorted((self._pop() for _ in range(num_groups)), key=lambda group: group.index)

    def counts_by_version(self) -> Mapping[int, int]:
        """Groups held, by the version at admission."""
        return self._counts

    def groups(self) -> list[Group]:
        """All groups held, in the order they would be taken."""
        return [group for version in sorted(self._by_version) for group in self._by_version[version]]

    def _pop(self) -> Group:
        version = min(self._by_version)
        group = self._by_version[version].popleft()
        self._counts[version] -= 1
        if not self._by_version[version]:
            del self._by_version[version], self._counts[version]
        return group
