"""The router of a run: a child of the driver, started when the first engines serve and again when it is lost."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.engines.fleet import EngineFleet
from miles.engines.last_lines import last_lines
from miles.engines.routed_fleet import RoutedFleet
from miles.engines.router import RouterClient
from miles.engines.router_server import RouterOptions, RouterServer
from miles.errors import EngineError
from miles.loops.engine_processes import most_in_flight


@dataclass(frozen=True, slots=True)
class RouterProcess:
    """A router that answers."""

    client: RouterClient
    server: RouterServer
    name: str = "the router"

    async def join(self, fleet: EngineFleet) -> None:
        """Stand before the engines of the fleet."""
        if not isinstance(fleet, RoutedFleet):
            raise EngineError(f"{self.name} was started for a fleet that has none.")
        await fleet.admit_router(self.client)

    async def ended(self) -> str:
        """Wait until it ends; why, with the end of its log."""
        return await self.server.process.wait() or f"{self.name} was stopped"

    def kill(self) -> None:
        """End it now."""
        self.server.process.kill()


class RouterStarter:
    """Starts the router, and ends it with the run."""

    def __init__(self, config: AnyConfig, derived: Derived, logs: Path) -> None:
        self._config, self._derived, self._log = config, derived, logs / "router.log"
        self._server: RouterServer | None = None

    async def start(self, number: int = 0) -> RouterProcess:
        """Start it and wait until it answers.

        Raises:
            EngineError: it did not start, or not in time; with its last lines.
        """
        seconds = self._config.engine.engine_start_timeout_seconds
        self._server = server = RouterServer(router_options(self._config, self._derived), self._log)
        try:
            async with asyncio.timeout(seconds):
                return RouterProcess(await server.start(), server)
        except TimeoutError as error:
            raise EngineError(
                f"the router did not answer within {seconds:g} s; --engine-start-timeout-seconds raises the limit. "
                f"Its last lines:\n{last_lines(self._log)}"
            ) from error

    async def end(self) -> None:
        """End it, if it was started."""
        if self._server is not None:
            await self._server.process.stop()


def router_options(config: AnyConfig, derived: Derived) -> RouterOptions:
    """What the router is started with; its ports come after those of the engines."""
    options = config.engine
    num_engines = max(derived.num_engines, len(options.rollout_external_engine_addrs))
    return RouterOptions(
        policy=derived.router_policy,
        number=num_engines,
        max_generations=num_engines * most_in_flight(options),
        first_port=options.engine_first_port,
        extra=options.router,
    )
