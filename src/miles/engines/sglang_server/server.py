"""One sglang server as a guarded child of this process: start, wait until it serves, say why it ended, end it."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from miles.engines.client import EngineClient
from miles.engines.last_lines import last_lines
from miles.engines.sglang_server.arguments import SglangOptions, server_command, server_environment
from miles.engines.sglang_server.ports import free_port, port_range
from miles.errors import EngineError

POLL_SECONDS = 0.2
PROBE_SECONDS = 5.0
STOP_SECONDS = 20.0


class SglangServer:
    """A server, not started yet; ``log`` takes everything it and its processes print."""

    def __init__(self, options: SglangOptions, log: Path, number: int = 0) -> None:
        self._options, self._log, self._number = options, log, number
        self._guard: subprocess.Popen[bytes] | None = None
        self._is_stopping = False

    async def start(self) -> str:
        """Start and wait until it serves; the address. The caller sets the time limit.

        Raises:
            EngineError: no port is free, or the server ended; with its last lines.
        """
        host = self._options.host or node_address()
        port = free_port(host, port_range(self._number, self._options.first_port))
        self._guard = self._launch(host, port)
        address = f"http://{host}:{port}"
        try:
            async with EngineClient(address, control_timeout_seconds=PROBE_SECONDS) as client:
                await self._until_serving(client)
        except BaseException:
            await self.stop()
            raise
        return address

    async def wait(self) -> str:
        """Until the server ends: why, with its last lines, or "" after ``stop``."""
        if self._guard is None:
            return ""
        code = await asyncio.to_thread(self._guard.wait)
        return "" if self._is_stopping else self._ended_words(code)

    async def stop(self) -> None:
        """End the server and every process of it."""
        self._is_stopping = True
        if self._guard is None or self._guard.stdin is None:
            return
        self._guard.stdin.close()
        await asyncio.to_thread(self._guard.wait, STOP_SECONDS)

    def _launch(self, host: str, port: int) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "miles.engines.sglang_server.guard", *server_command(self._options, host, port)]
        with self._log.open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=server_environment(self._options, os.environ),
                start_new_session=True,
            )

    async def _until_serving(self, client: EngineClient) -> None:
        while self._guard is not None and (code := self._guard.poll()) is None:
            try:
                info = await client.model_info()
            except EngineError:
                await asyncio.sleep(POLL_SECONDS)
                continue
            if info["model_path"] != self._options.model_path:
                raise EngineError(f"{client.address} serves {info['model_path']}: another server took the port. Start again.")
            return
        raise EngineError(self._ended_words(code))

    def _ended_words(self, code: int | None) -> str:
        return f"the sglang server ended with exit code {code}.\nIts last lines ({self._log}):\n{last_lines(self._log)}"


def node_address() -> str:
    """The address of this node in its Ray cluster."""
    import ray

    return str(ray.util.get_node_ip_address())
