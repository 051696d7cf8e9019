"""What engines hold against what the policy published: the checksum of every tensor."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from miles.engines.client import EngineClient
from miles.engines.weight_calls import weight_checksums
from miles.errors import WeightMismatchError
from miles.weights.transport import Engines

NAMES_SHOWN = 3


class ChecksumSource(Protocol):
    """The policy."""

    async def checksums(self, names: Sequence[str]) -> dict[str, list[str]]:
        """For each tensor of an engine, the checksums it may have."""
        ...


class WeightCheck:
    """Compares after an update, and again when an engine comes back to the same version."""

    def __init__(self, source: ChecksumSource) -> None:
        self._source = source
        self._right: Mapping[str, Sequence[str]] = {}

    async def compare(self, version: int, engines: Engines) -> None:
        """The policy's weights are ``version``: every engine holds them.

        Raises:
            WeightMismatchError: one does not; names tensors.
        """
        held = await self._held(engines)
        names = sorted({name for ranks in held.values() for sums in ranks for name in sums})
        self._right = await self._source.checksums(names)
        refuse_differences(version, held, self._right)

    async def compare_again(self, version: int, engines: Engines) -> None:
        """The same for engines that come back, by what the policy had when it published ``version``."""
        refuse_differences(version, await self._held(engines), self._right)

    async def _held(self, engines: Engines) -> dict[str, list[Mapping[str, str]]]:
        """By address, for each rank."""

        async def ask(client: EngineClient) -> tuple[str, list[Mapping[str, str]]]:
            return client.address, await weight_checksums(client)

        return dict(await engines.on_all(ask))


def refuse_differences(version: int, held: Mapping[str, Sequence[Mapping[str, str]]], right: Mapping[str, Sequence[str]]) -> None:
    """Every tensor that an engine holds has one of its right checksums.

    Raises:
        WeightMismatchError: one has not.
    """
    for address, ranks in held.items():
        for sums in ranks:
            wrong = [name for name, found in sums.items() if found not in right.get(name, ())]
            if wrong or not sums:
                shown = ", ".join(wrong[:NAMES_SHOWN]) + (", …" if len(wrong) > NAMES_SHOWN else "")
                raise WeightMismatchError(
                    f"{address} does not hold weights version {version} as the policy has it: {len(wrong)} of {len(sums)} "
                    f"tensors differ ({shown}). The run must not go on from it. Try another --update-weight-transfer-mode; if "
                    "the tensors are named differently there, this model cannot be compared: leave --check-weight-update out."
                )
