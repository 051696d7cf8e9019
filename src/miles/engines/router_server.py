"""sglang's router as a guarded child of this process, in front of the engines of a run.

Who serves and who is ill is the run's own to say (its supervisor asks every engine for signs of life and takes it out of the
router), so the router's health checks, retries and circuit breakers are off: with them it would judge engines by answers to
single requests, and a pause for new weights would look like an illness.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from miles.engines.router import RouterClient
from miles.engines.sglang_server.arguments import as_words, by_name
from miles.engines.sglang_server.guarded import Guarded
from miles.engines.sglang_server.ports import free_port, port_range

POLL_SECONDS = 0.05
SERVED_SECONDS = 86400  # a request's longest time is the run's to limit


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """One router.

    policy: how it chooses an engine; ``manual`` keeps requests of one group together.
    number: of its range of ports, which comes after those of the engines.
    max_generations: requests through it at once.
    extra: arguments of the user by name without dashes; they replace ours.
    """

    policy: str
    number: int
    max_generations: int
    host: str = "127.0.0.1"
    first_port: int = 15000
    extra: tuple[tuple[str, str], ...] = ()


class RouterServer:
    """A router, not started yet; ``log`` takes everything it prints."""

    def __init__(self, options: RouterOptions, log: Path) -> None:
        self._options = options
        self.process = Guarded("sglang's router", log)

    async def start(self) -> RouterClient:
        """Start it and wait until it answers; a client of it. The caller sets the time limit.

        Raises:
            EngineError: no port is free, or it ended; with its last lines.
        """
        options = self._options
        ports = port_range(options.number, options.first_port)
        port = free_port(options.host, ports)
        metrics_port = free_port(options.host, [other for other in ports if other != port])
        self.process.launch(router_command(options, port, metrics_port), os.environ)
        client = RouterClient(f"http://{options.host}:{port}", max_generations=options.max_generations)
        try:
            while not await client.alive(1.0):
                self.process.refuse_if_ended()
                await asyncio.sleep(POLL_SECONDS)
            self.process.refuse_another_at(port)
        except BaseException:
            await client.close()
            await self.process.stop()
            raise
        return client


def router_command(options: RouterOptions, port: int, metrics_port: int) -> Sequence[str]:
    """The command that starts a router without engines."""
    arguments = {
        "host": [options.host],
        "port": [str(port)],
        "prometheus-host": [options.host],
        "prometheus-port": [str(metrics_port)],
        "policy": [options.policy],
        "assignment-mode": ["min_load"],
        "log-level": ["warn"],
        "request-timeout-secs": [str(SERVED_SECONDS)],
        "disable-retries": ["true"],
        "disable-circuit-breaker": ["true"],
        "disable-health-check": ["true"],
        "shutdown-grace-period-secs": ["1"],
    }
    return [sys.executable, "-m", "sglang_router.launch_router", *as_words(arguments | by_name(options.extra))]
