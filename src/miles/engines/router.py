"""Client of sglang's router: engines register and leave, and single requests go through it.

The router speaks a part of ``/generate``: one request each, no lists, and fields that it does not know are dropped. It
answers what the engine answers. Steering it knows not: pause, abort and weights go to the engines directly.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from miles.engines.answers import wire_request
from miles.engines.client import read_answer, read_json
from miles.engines.connection import Connection, Pool
from miles.engines.wire import Answer, GenerateRequest
from miles.errors import EngineError

Workers = Sequence[Mapping[str, Any]]
POLL_SECONDS = 0.02
GROUP_HEADER = "X-SMG-Routing-Key"  # what the policy `manual` keeps together


class RouterClient:
    """One router at ``address``; ``max_generations`` requests go through it at once."""

    def __init__(self, address: str, *, max_generations: int, control_timeout_seconds: float = 30.0) -> None:
        self.address = address
        self._seconds = control_timeout_seconds
        self._connection = Connection(address, Pool(max_generations))

    async def close(self) -> None:
        """Close the connections for good."""
        await self._connection.close()

    async def generate(self, request: GenerateRequest, version: int) -> Answer:
        """The answer of the engine that the router chose; cancelling it breaks the connection to that engine off.

        Raises:
            BehindRouterError: the engine broke off.
            EngineUnreachableError: the router did.
            EngineError: the engine refused; its own words.
        """
        headers = {GROUP_HEADER: request.group} if request.group else None
        body = wire_request(request, version)
        content = await self._connection.send("POST", "/generate", body, None, generates=True, headers=headers)
        return read_answer(self.address, request, read_json(content, f"{self.address}/generate"))

    async def register(self, engine: str) -> None:
        """Requests go to this engine as well, from now on.

        Raises:
            EngineError: the router does not take it.
        """
        await self._connection.send("POST", "/workers", {"url": engine}, self._seconds)
        await self._until(lambda workers: any(one["url"] == engine and one["is_healthy"] for one in workers), f"take {engine} in")

    async def leave(self, engine: str) -> None:
        """No new request goes to this engine; those that are there go on. An unknown engine is none either.

        Raises:
            EngineError: the router does not let it go.
        """
        number = (await self.workers()).get(engine)
        if number is not None:
            await self._connection.send("DELETE", f"/workers/{number}", None, self._seconds)
            await self._until(lambda workers: all(one["url"] != engine for one in workers), f"let {engine} go")

    async def workers(self) -> dict[str, str]:
        """The engines behind the router, and what it calls them."""
        return {worker["url"]: worker["id"] for worker in await self._listed()}

    async def _listed(self) -> Workers:
        listed: Workers = orjson.loads(await self._connection.send_repeatable("GET", "/workers", None, self._seconds))["workers"]
        return listed

    async def alive(self, timeout_seconds: float, *, is_updating: bool = False) -> bool:
        """Whether the router answers in time, with or without engines; updates of their weights do not go through it."""
        try:
            await self._connection.send("GET", "/liveness", None, timeout_seconds)
        except EngineError:
            return False
        return True

    async def _until(self, holds: Callable[[Workers], bool], what: str) -> None:
        """The router only queues such wishes, and tells nobody when they have come true."""
        try:
            async with asyncio.timeout(self._seconds):
                while not holds(await self._listed()):  # noqa: ASYNC110 - the router calls nobody back
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            raise EngineError(f"the router at {self.address} did not {what} within {self._seconds:g} s. See its log.") from error
