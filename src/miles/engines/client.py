"""Asynchronous client of one engine that speaks SGLang's HTTP API."""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import orjson

from miles.engines.answers import adapter_field, cache_key, parse_answer, parse_version, wire_request, wire_rid
from miles.engines.connection import MAX_GENERATIONS, Connection, Pool
from miles.engines.wire import Answer, GenerateRequest, PauseMode
from miles.errors import EngineError

ABORT_AFTER_CANCEL_SECONDS = 5.0
SCHEDULES = "/server_info"  # which part of an engine answers what
LISTENS = "/v1/models"


class EngineClient:
    """One engine behind ``address``, asked without a router.

    Its connections belong to the instance and to the event loop of its first call. Only calls that may be repeated without
    harm are, and only where the connection failed. Requests beyond ``max_generations`` at once wait for one of them to end.

    control_timeout_seconds: for calls that take as long as weights are large.
    prompt_timeout_seconds: for those that a healthy engine answers at once (pause, continue, abort, flush).
    adapter: LoRA adapter that requests ask for; empty where the engine was given none.
    """

    def __init__(
        self,
        address: str,
        *,
        generate_timeout_seconds: float | None = None,
        control_timeout_seconds: float = 120.0,
        prompt_timeout_seconds: float | None = None,
        max_generations: int = MAX_GENERATIONS,
    ) -> None:
        self.address = address.rstrip("/")
        self.published, self.adapter = 0, ""
        self._generate_seconds, self._control_seconds = generate_timeout_seconds, control_timeout_seconds
        self._prompt_seconds = min(prompt_timeout_seconds or control_timeout_seconds, control_timeout_seconds)
        self._connection = Connection(self.address, Pool(max_generations))
        self._model_name = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections for good; a call that comes later fails."""
        await self._connection.close()

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        """Answers in the order of the requests, asked as one HTTP request; cancelling it aborts them on the engine.

        Raises:
            EngineError: the engine refused, failed, or did not answer in time; carries its own words.
        """
        if not requests:
            return []
        single = [wire_request(request, self.published) for request in requests]
        body: dict[str, Any] = {name: [one[name] for one in single] for name in ("rid", "input_ids", "sampling_params")}
        body |= {"return_logprob": True, "extra_key": cache_key(self.published), **adapter_field(self.adapter)}
        try:
            content = await self._connection.send("POST", "/generate", body, self._generate_seconds, generates=True)
        except asyncio.CancelledError:
            await self.abort_in_time([request.rid for request in requests])
            raise
        answers = read_json(content, f"{self.address}/generate")
        if not isinstance(answers, list) or len(answers) != len(requests):
            raise EngineError(f"{self.address}/generate gave no list of {len(requests)} answers.")
        return [read_answer(self.address, request, answer) for request, answer in zip(requests, answers, strict=True)]

    async def abort(self, rids: Sequence[str]) -> None:
        """End requests now; their ``generate`` returns what was sampled. Unknown ids are ignored."""
        await asyncio.gather(*(self._at_once("POST", "/abort_request", {"rid": wire_rid(rid)}) for rid in rids))

    async def abort_in_time(self, rids: Sequence[str]) -> None:
        """Best effort: the caller is leaving, and a dead engine holds nothing to abort."""
        try:
            await asyncio.wait_for(asyncio.shield(self.abort(rids)), ABORT_AFTER_CANCEL_SECONDS)
        except (EngineError, TimeoutError):
            return

    async def abort_all(self) -> None:
        """End every request of the engine, also those of other clients."""
        await self._at_once("POST", "/abort_request", {"abort_all": True})

    async def pause(self, mode: PauseMode) -> None:
        """Stop decoding; ``mode`` says what becomes of running requests."""
        await self._at_once("POST", "/pause_generation", {"mode": mode})

    async def continue_generation(self) -> None:
        """Decode again after ``pause``."""
        await self._at_once("POST", "/continue_generation", {})

    async def flush_cache(self) -> None:
        """Drop cached prefixes.

        Raises:
            EngineError: requests are running; the engine's words.
        """
        await self._at_once("POST", "/flush_cache", {})

    async def update_weights_from_disk(self, path: str, version: int, *, flushes: bool) -> None:
        """Load a Hugging Face safetensors folder as ``version``; ``flushes`` drops cached prefixes with the old weights.

        Raises:
            EngineError: the engine refused the weights and kept its own, or could not flush.
        """
        body = {"model_path": path, "weight_version": str(version), "flush_cache": flushes}
        await self._repeatable("POST", "/update_weights_from_disk", body)
        self.note_published(version)

    def note_published(self, version: int) -> None:
        """The engine has taken the weights of ``version``; requests from now on share cached prefixes with each other alone."""
        self.published = version

    async def steer(self, path: str, body: Mapping[str, Any], *, repeatable: bool) -> Any:
        """POST ``body``; the answer's JSON. ``repeatable``: asking twice does no harm, so a broken connection is tried again.

        Raises:
            EngineError: the engine refused, failed, or did not answer in time; carries its own words.
        """
        send = self._connection.send_repeatable if repeatable else self._connection.send
        content = await send("POST", path, body, self._control_seconds)
        return read_json(content, f"{self.address}{path}") if content else None

    async def model_info(self) -> dict[str, Any]:
        """What the engine says of its model; ``weight_version`` among it."""
        info: dict[str, Any] = orjson.loads(await self._repeatable("GET", "/model_info", None))
        return info

    async def server_info(self) -> dict[str, Any]:
        """What the engine says of itself: its options, its load, and sglang its ``version``."""
        info: dict[str, Any] = orjson.loads(await self._repeatable("GET", "/server_info", None))
        return info

    async def model_name(self) -> str:
        """What the OpenAI-style endpoint calls the model; asked once."""
        if not self._model_name:
            listed = orjson.loads(await self._repeatable("GET", "/v1/models", None))
            self._model_name = str(listed["data"][0]["id"])
        return self._model_name

    async def weight_version(self) -> int:
        """The version that new tokens are sampled under."""
        return parse_version((await self.model_info())["weight_version"])

    async def healthy(self) -> bool:
        """Whether the engine answers and can sample."""
        return await self._answers("/health_generate", self._control_seconds)

    async def alive(self, timeout_seconds: float, *, is_updating: bool = False) -> bool:
        """Whether the engine gives a sign of life in time, paused or not; it need not be able to sample.

        The scheduler answers ``/server_info``, unless it loads weights, however long that takes. Then (``is_updating``) the
        process that listens is asked alone.
        """
        return await self._answers(LISTENS if is_updating else SCHEDULES, timeout_seconds)

    async def _answers(self, path: str, seconds: float) -> bool:
        try:
            await self._connection.send("GET", path, None, seconds)
        except EngineError:
            return False
        return True

    async def _at_once(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        await self._connection.send_repeatable(method, path, body, self._prompt_seconds)

    async def _repeatable(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        return await self._connection.send_repeatable(method, path, body, self._control_seconds)


def read_json(content: bytes, url: str) -> Any:
    """The object of an answer.

    Raises:
        EngineError: it is no JSON.
    """
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise EngineError(f"{url} answered something that is not JSON: {error}.") from error


def read_answer(address: str, request: GenerateRequest, answer: Mapping[str, Any]) -> Answer:
    """One answer of ``/generate``.

    Raises:
        EngineError: it lacks what was asked for.
    """
    try:
        return parse_answer(request.rid, answer)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"{address}/generate: answer to {request.rid} lacks what was asked for: {error!r}.") from error
