"""A sglang server as a Ray actor: the actor holds the pipe of the server's guard, so the server ends with it."""

from pathlib import Path
from typing import Any

from miles.engines.sglang_server.arguments import SglangOptions
from miles.engines.sglang_server.server import SglangServer


class SglangActor:
    """The plain class behind the actor, with the calls of ``EngineActor``."""

    def __init__(self, options: SglangOptions, log: str, number: int = 0) -> None:
        self._server = SglangServer(options, Path(log), number)

    async def start(self) -> str:
        """Start the server; its address once it serves.

        Raises:
            EngineError: it ended; with its last lines.
        """
        return await self._server.start()

    async def wait(self) -> str:
        """Until the server ends: why, or "" after ``stop``."""
        return await self._server.wait()

    async def stop(self) -> None:
        """End the server and its processes."""
        await self._server.stop()


def remote_sglang_actor(**options: Any) -> Any:
    """``SglangActor`` as a Ray actor class; ``options`` are Ray's (``num_cpus``, ``num_gpus``, scheduling, …)."""
    import ray

    return ray.remote(**{"num_cpus": 1, "max_restarts": 0, **options})(SglangActor)
