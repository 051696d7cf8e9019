"""One sglang server as a guarded child of this process: start it and wait until it serves."""

import asyncio
import os
from pathlib import Path

from miles.engines.client import EngineClient
from miles.engines.sglang_server.arguments import SglangOptions, server_command, server_environment
from miles.engines.sglang_server.guarded import Guarded
from miles.engines.sglang_server.ports import free_port, port_range
from miles.errors import EngineError

POLL_SECONDS = 0.2
PROBE_SECONDS = 5.0


class SglangServer:
    """A server, not started yet; ``log`` takes everything it and its processes print."""

    def __init__(self, options: SglangOptions, log: Path, number: int = 0) -> None:
        self._options, self._number = options, number
        self._process = Guarded("the sglang server", log)

    async def start(self) -> str:
        """Start and wait until it serves; the address. The caller sets the time limit.

        Raises:
            EngineError: no port is free, or the server ended; with its last lines.
        """
        host = self._options.host or node_address()
        port = free_port(host, port_range(self._number, self._options.first_port))
        self._process.launch(server_command(self._options, host, port), server_environment(self._options, os.environ))
        address = f"http://{host}:{port}"
        try:
            async with EngineClient(address, control_timeout_seconds=PROBE_SECONDS) as client:
                await self._until_serving(client)
            self._process.refuse_another_at(port)
        except BaseException:
            await self.stop()
            raise
        return address

    async def wait(self) -> str:
        """Until the server ends: why, with its last lines, or "" after ``stop``."""
        return await self._process.wait()

    async def stop(self) -> None:
        """End the server and every process of it."""
        await self._process.stop()

    async def _until_serving(self, client: EngineClient) -> None:
        while True:
            self._process.refuse_if_ended()
            try:
                await client.model_info()
            except EngineError:
                await asyncio.sleep(POLL_SECONDS)
            else:
                return


def node_address() -> str:
    """The address of this node in its Ray cluster."""
    import ray

    return str(ray.util.get_node_ip_address())
