"""HTTP to one server: bounded pools of connections, time-outs, and errors in the server's own words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_exponential_jitter,
)

from miles.errors import EngineError

ATTEMPTS = 3
CONNECT_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 2.0  # sglang closes idle connections after five, and a request must not meet that moment
MAX_GENERATIONS = 256  # requests of one client at an engine at once, unless it is told another number
MAX_CONTROLS = 16
SERVER_SAYS_UNREACHABLE = "call_upstream_request_error"  # sglang's router, of an engine that broke off
SERVER_HAS_NONE = "no_available_workers"
NAMES_OF_ERRORS = "x-smg-error-code"


class EngineUnreachableError(EngineError):
    """The connection to an engine failed; nothing is known of the request."""


class EngineSilentError(EngineUnreachableError):
    """An engine did not answer in time; asking again would only wait again."""


class BehindRouterError(EngineUnreachableError):
    """A router answered that its own connection to an engine failed, or that it knows of none."""


@dataclass(slots=True)
class Pool:
    """Connections of one kind; those beyond ``size`` wait for one that is free."""

    size: int
    session: aiohttp.ClientSession | None = None

    def open(self) -> aiohttp.ClientSession:
        """The session of the event loop that asks first."""
        if self.session is None or self.session.closed:
            connector = aiohttp.TCPConnector(limit=self.size, keepalive_timeout=KEEP_ALIVE_SECONDS)
            self.session = aiohttp.ClientSession(connector=connector)
        return self.session

    async def close(self) -> None:
        """Break its connections off."""
        if self.session is not None:
            await self.session.close()


@dataclass(slots=True)
class Connection:
    """One server at ``address``.

    Generation and control have pools of their own, so that an abort never waits behind what it shall end.
    """

    address: str
    generations: Pool = field(default_factory=lambda: Pool(MAX_GENERATIONS))
    controls: Pool = field(default_factory=lambda: Pool(MAX_CONTROLS))
    is_closed: bool = False

    async def close(self) -> None:
        """Break off what is under way, for good; a call that comes later fails."""
        self.is_closed = True
        await self.generations.close()
        await self.controls.close()

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        seconds: float | None,
        *,
        generates: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """The content of an answer that says yes.

        Raises:
            EngineUnreachableError: the connection failed, here or from a router to its engine; or no answer within ``seconds``.
            EngineError: the server refused; in its own words.
        """
        url = f"{self.address}{path}"
        if self.is_closed:
            raise EngineUnreachableError(f"The client of {self.address} is closed.")
        pool = self.generations if generates else self.controls
        try:
            async with pool.open().request(
                method,
                url,
                data=None if body is None else orjson.dumps(body),
                headers={"Content-Type": "application/json", **(headers or {})},
                timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS),
            ) as response:
                content = await response.read()
        except TimeoutError as error:
            raise EngineSilentError(f"{url} did not answer within {seconds:g} s.") from error
        except aiohttp.ClientError as error:
            raise EngineUnreachableError(f"{url} cannot be reached ({error}). Is the engine still alive?") from error
        if not response.ok:
            raise self._refusal(f"{url} answered {response.status}: {error_words(content)}", response.headers)
        return content

    def _refusal(self, words: str, headers: Mapping[str, str]) -> EngineError:
        is_from_router = headers.get(NAMES_OF_ERRORS) in (SERVER_SAYS_UNREACHABLE, SERVER_HAS_NONE)
        return BehindRouterError(words) if is_from_router else EngineError(words)

    async def send_repeatable(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> bytes:
        """As ``send``, asked again where the connection failed: for calls that do no harm when they come twice."""
        retrying = AsyncRetrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential_jitter(initial=0.05, max=1.0),
            retry=retry_if_exception_type(EngineUnreachableError) & retry_if_not_exception_type(EngineSilentError),
            reraise=True,
        )
        return await retrying(self.send, method, path, body, seconds)


def error_words(content: bytes) -> str:
    """The server's own words out of whichever shape it put them in."""
    try:
        body: Any = orjson.loads(content)
    except orjson.JSONDecodeError:
        return content.decode(errors="replace").strip()
    for name in ("error", "message", "detail"):
        if isinstance(body, dict) and name in body:
            body = body[name]
    return body if isinstance(body, str) else orjson.dumps(body).decode()
