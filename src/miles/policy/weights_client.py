"""The sending end of publishing for the loops: ``WeightSender`` on all trainer ranks behind one awaitable for each step."""

from collections.abc import Sequence
from typing import Any, Protocol

from miles.engines.transfer.specs import TensorSpec

Specs = tuple[TensorSpec, ...]


class Ask(Protocol):
    """Calls a step on the ranks; the answer of each."""

    async def __call__(self, doing: str, step: str, *arguments: Any, first_only: bool = False, **options: Any) -> list[Any]:
        """``doing`` is for errors; ``first_only`` leaves the other ranks alone."""
        ...


class PolicyWeights:
    """As ``WeightSender``, for all ranks together.

    Every call raises ``PolicyError`` where a rank failed or its process has ended.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def stage(self, version: int, bucket_bytes: int, *, shared: bool = False, on_device: bool = False) -> list[Specs]:
        """Get ready to send the weights as ``version``; what each bucket holds."""
        doing = f"gathering weights version {version}"
        answers: list[list[Specs]] = await self._ask(doing, "stage", version, bucket_bytes, shared=shared, on_device=on_device)
        return answers[0]

    async def keep_only(self, version: int) -> None:
        """Forget the versions before."""
        await self._ask("forgetting old weights", "keep_only", version)

    async def payloads(self, version: int, bucket: int, count: int) -> list[str]:
        """So many handles to a bucket in the host's shared memory."""
        answers = await self._ask(f"sharing weights version {version}", "payloads", version, bucket, count, first_only=True)
        handles: list[str] = answers[0]
        return handles

    async def device_payloads(self, bucket: int) -> list[str]:
        """A handle to each rank's own copy of a bucket on its GPU; valid until the next call."""
        return await self._ask("sharing weights on the GPUs", "device_payload", bucket)

    async def listen(self, group: str, host: str, size: int, timeout_seconds: float) -> int:
        """Begin a group with an engine; the port."""
        answers = await self._ask(f"opening the group {group}", "listen", group, host, size, timeout_seconds, first_only=True)
        return int(answers[0])

    async def join(self, group: str, size: int, backend: str, timeout_seconds: float) -> None:
        """Return when the engine has joined."""
        await self._ask(f"joining the group {group}", "join", group, size, backend, timeout_seconds, first_only=True)

    async def leave(self, group: str) -> None:
        """End a group."""
        await self._ask(f"leaving the group {group}", "leave", group, first_only=True)

    async def broadcast(self, version: int, bucket: int, groups: Sequence[str]) -> dict[str, str]:
        """Send a bucket into all groups; the words of those that failed, by group."""
        doing = f"broadcasting weights version {version}"
        answers: list[dict[str, str]] = await self._ask(doing, "broadcast", version, bucket, list(groups), first_only=True)
        return answers[0]

    async def checksums(self, names: Sequence[str]) -> dict[str, list[str]]:
        """For each tensor of an engine, the checksums it may have."""
        answers: list[dict[str, list[str]]] = await self._ask("computing checksums", "checksums", list(names))
        return answers[0]
