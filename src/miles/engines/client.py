"""Asynchronous client of one engine that speaks SGLang's HTTP API."""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from miles.engines.wire import Answer, FinishReason, GenerateRequest, PauseMode
from miles.errors import EngineError
from miles.types import VersionSpan

ATTEMPTS = 3
ABORT_AFTER_CANCEL_SECONDS = 5.0
KEEP_ALIVE_SECONDS = 2.0  # sglang closes idle connections after five, and a request must not meet that moment
UNVERSIONED = "default"  # what servers call weights that nobody versioned: version 0


class EngineClient:
    """One engine behind ``address``; implements ``wire.EngineApi``.

    The HTTP session belongs to the instance and to the event loop of its first call. Only calls that may be repeated
    without harm are retried, and only where the connection failed.
    """

    def __init__(
        self, address: str, *, generate_timeout_seconds: float | None = None, control_timeout_seconds: float = 120.0
    ) -> None:
        self.address = address.rstrip("/")
        self._generate_timeout = aiohttp.ClientTimeout(total=generate_timeout_seconds, sock_connect=10.0)
        self._control_timeout = aiohttp.ClientTimeout(total=control_timeout_seconds, sock_connect=10.0)
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._published = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections for good; a call that comes later fails."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        """Answers in the order of the requests, asked as one HTTP request; cancelling it aborts them on the engine.

        Raises:
            EngineError: the engine refused, failed, or did not answer in time; carries its own words.
        """
        if not requests:
            return []
        body = {
            "rid": [wire_rid(request.rid) for request in requests],
            "input_ids": [list(request.input_ids) for request in requests],
            "sampling_params": [request.sampling.to_wire() for request in requests],
            "return_logprob": True,
            "extra_key": cache_key(self._published),
        }
        try:
            answers = orjson.loads(await self._send("POST", "/generate", body, self._generate_timeout))
        except asyncio.CancelledError:
            await self._abort_after_cancel([request.rid for request in requests])
            raise
        except orjson.JSONDecodeError as error:
            raise EngineError(f"{self.address}/generate answered something that is not JSON: {error}.") from error
        if not isinstance(answers, list) or len(answers) != len(requests):
            raise EngineError(f"{self.address}/generate gave no list of {len(requests)} answers.")
        return [self._answer(request, answer) for request, answer in zip(requests, answers, strict=True)]

    def _answer(self, request: GenerateRequest, answer: Mapping[str, Any]) -> Answer:
        try:
            return parse_answer(request.rid, answer)
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"{self.address}/generate: answer to {request.rid} lacks what was asked for: {error!r}.") from error

    async def abort(self, rids: Sequence[str]) -> None:
        """End requests now; their ``generate`` returns what was sampled. Unknown ids are ignored."""
        await asyncio.gather(*(self._repeatable("POST", "/abort_request", {"rid": wire_rid(rid)}) for rid in rids))

    async def abort_all(self) -> None:
        """End every request of the engine, also those of other clients."""
        await self._repeatable("POST", "/abort_request", {"abort_all": True})

    async def pause(self, mode: PauseMode) -> None:
        """Stop decoding; ``mode`` says what becomes of running requests."""
        await self._repeatable("POST", "/pause_generation", {"mode": mode})

    async def continue_generation(self) -> None:
        """Decode again after ``pause``."""
        await self._repeatable("POST", "/continue_generation", {})

    async def flush_cache(self) -> None:
        """Drop cached prefixes.

        Raises:
            EngineError: requests are running; the engine's words.
        """
        await self._repeatable("POST", "/flush_cache", {})

    async def update_weights_from_disk(self, path: str, version: int, *, flushes: bool) -> None:
        """Load a Hugging Face safetensors folder as ``version``; ``flushes`` drops cached prefixes with the old weights.

        Raises:
            EngineError: the engine refused the weights and kept its own, or could not flush.
        """
        body = {"model_path": path, "weight_version": str(version), "flush_cache": flushes}
        await self._repeatable("POST", "/update_weights_from_disk", body)
        self._published = version

    async def model_info(self) -> dict[str, Any]:
        """What the engine says of its model; ``weight_version`` among it."""
        info: dict[str, Any] = orjson.loads(await self._repeatable("GET", "/model_info", None))
        return info

    async def server_info(self) -> dict[str, Any]:
        """What the engine says of itself: its options, its load, and sglang its ``version``."""
        info: dict[str, Any] = orjson.loads(await self._repeatable("GET", "/server_info", None))
        return info

    async def weight_version(self) -> int:
        """The version that new tokens are sampled under."""
        return parse_version((await self.model_info())["weight_version"])

    async def healthy(self) -> bool:
        """Whether the engine answers and can sample."""
        try:
            await self._send("GET", "/health_generate", None, self._control_timeout)
        except EngineError:
            return False
        return True

    async def alive(self, timeout_seconds: float) -> bool:
        """Whether the engine's scheduler answers in time, paused or not; it need not be able to sample."""
        try:
            await self._send("GET", "/server_info", None, aiohttp.ClientTimeout(total=timeout_seconds))
        except EngineError:
            return False
        return True

    async def _abort_after_cancel(self, rids: list[str]) -> None:
        """Best effort: the caller is leaving, and a dead engine holds nothing to abort."""
        try:
            await asyncio.wait_for(asyncio.shield(self.abort(rids)), ABORT_AFTER_CANCEL_SECONDS)
        except (EngineError, TimeoutError):
            return

    async def _repeatable(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential_jitter(initial=0.05, max=1.0),
            retry=retry_if_exception_type(EngineUnreachableError),
            reraise=True,
        )
        return await retrying(self._send, method, path, body, self._control_timeout)

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None, limit: aiohttp.ClientTimeout) -> bytes:
        url = f"{self.address}{path}"
        data = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": "application/json"}
        try:
            async with self._open().request(method, url, data=data, headers=headers, timeout=limit) as response:
                content = await response.read()
        except TimeoutError as error:
            raise EngineError(f"{url} did not answer within {limit.total} s. Look at the engine's log.") from error
        except aiohttp.ClientError as error:
            raise EngineUnreachableError(f"{url} cannot be reached ({error}). Is the engine still alive?") from error
        if response.status != 200:
            raise EngineError(f"{url} answered {response.status}: {error_words(content)}")
        return content

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise EngineUnreachableError(f"The client of {self.address} is closed.")
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS))
        return self._session


class EngineUnreachableError(EngineError):
    """The connection to an engine failed; nothing is known of the request."""


def wire_rid(rid: str) -> str:
    """The id on the wire; none is the beginning of another.

    SGLang aborts every request whose id begins with the one given, so aborting ``7-1`` would end ``7-10`` as well.
    """
    return f"{len(rid)}:{rid}"


def cache_key(version: int) -> str:
    """Requests of different published versions share no cached prefix, also where a pause kept the cache from being flushed."""
    return f"weights-{version}"


def parse_version(version: str) -> int:
    """A weight version as a number.

    Raises:
        ValueError: it is no number.
    """
    return 0 if version == UNVERSIONED else int(version)


def parse_answer(rid: str, answer: Mapping[str, Any]) -> Answer:
    """One object of a ``/generate`` answer that was asked for log-probabilities.

    Raises:
        KeyError, TypeError, ValueError: it does not have SGLang's shape, or its version spans leave a token out.
    """
    meta = answer["meta_info"]
    entries = meta.get("output_token_logprobs") or []
    spans = tuple(
        VersionSpan(parse_version(span["version"]), span["start"], span["end"])
        for span in meta["weight_versions"]
        if span["end"] > span["start"]
    )
    ends = [0, *(span.end for span in spans)]
    if [*(span.start for span in spans), len(entries)] != ends:
        raise ValueError(f"version spans {meta['weight_versions']} do not cover {len(entries)} tokens")
    kind: FinishReason = meta["finish_reason"]["type"]
    if kind not in ("stop", "length", "abort"):
        raise ValueError(f"finish_reason {meta['finish_reason']} is of no known type")
    return Answer(
        rid=rid,
        output_ids=tuple(entry[1] for entry in entries),
        logprobs=tuple(entry[0] for entry in entries),
        finish_reason=kind,
        versions=spans,
        text=answer.get("text") or "",
    )


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
