"""Abort, pause, continue, flush, health and information."""

import asyncio
import uuid
from collections.abc import Awaitable, Mapping
from typing import Any, get_args

from aiohttp import web

from miles.engines.embedded.http_json import json_object, json_response
from miles.engines.embedded.model import LoadedModel
from miles.engines.embedded.parse import BadRequestError
from miles.engines.embedded.request import Request, Sampling
from miles.engines.embedded.scheduler import Scheduler
from miles.engines.embedded.weight_routes import WeightRoutes
from miles.engines.embedded.worker import Worker
from miles.engines.wire import PauseMode
from miles.errors import EngineError

HEALTH_SECONDS = 20.0


class AdminRoutes:
    """Handlers that steer one worker."""

    def __init__(self, worker: Worker, model: LoadedModel, options: Mapping[str, Any], weights: WeightRoutes) -> None:
        self._worker, self._model, self._options, self._weights = worker, model, options, weights

    def routes(self) -> list[web.RouteDef]:
        """What the application serves."""
        return [
            web.post("/abort_request", self.abort_request),
            web.post("/pause_generation", self.pause_generation),
            web.post("/continue_generation", self.continue_generation),
            web.post("/flush_cache", self.flush_cache),
            web.get("/flush_cache", self.flush_cache),
            web.get("/model_info", self.model_info),
            web.get("/get_model_info", self.model_info),
            web.get("/server_info", self.server_info),
            web.get("/get_server_info", self.server_info),
            web.get("/health", self.health),
            web.get("/health_generate", self.health_generate),
        ]

    async def abort_request(self, http: web.Request) -> web.Response:
        """End one request (and, as in SGLang, those whose ids begin with its id) or all."""
        body = await json_object(http, ("rid", "abort_all"), {"abort_message": (None,), "finished_reason": (None,)})
        rid, abort_all = body.get("rid") or "", body.get("abort_all", False)
        if not isinstance(rid, str) or not isinstance(abort_all, bool):
            raise BadRequestError(f"rid must be a string and abort_all true or false, got {rid!r} and {abort_all!r}.")
        if abort_all:
            await self._worker.abort(lambda request: True)
        elif rid in self._worker.rids:
            await self._worker.abort(lambda request: request.rid.startswith(rid))
        return web.Response()

    async def pause_generation(self, http: web.Request) -> web.Response:
        """Stop decoding; the mode says what becomes of running requests."""
        body = await json_object(http, ("mode",), {})
        mode = body.get("mode", "abort")
        if mode not in get_args(PauseMode):
            raise BadRequestError(f"mode = {mode!r} is no way to pause; use one of {', '.join(get_args(PauseMode))}.")
        await self._worker.pause(mode)
        return json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, http: web.Request) -> web.Response:
        """Decode again."""
        await json_object(http, (), {"torch_empty_cache": (True, False)})
        await self._worker.call(Scheduler.resume)
        return json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def flush_cache(self, http: web.Request) -> web.Response:
        """Refused while requests hold the cache. No prefix outlives its request here, so there is nothing else to do."""
        words = await self._worker.call(Scheduler.busy_words)
        if words is not None:
            return web.Response(
                text=f"Cache not flushed: {words}. Wait for them, abort them or pause with mode retract.\n", status=400
            )
        return web.Response(text="Cache flushed.\n")

    async def model_info(self, http: web.Request) -> web.Response:
        """What runs here, and under which weight version."""
        config = self._model.config
        return json_response(
            {
                "model_path": self._weights.model_path,
                "served_model_name": self._options["model_path"],
                "tokenizer_path": self._options["model_path"],
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": await self._worker.call(lambda scheduler: scheduler.version),
                "load_format": "safetensors",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": config.model_type,
                "architectures": config.architectures,
            }
        )

    async def server_info(self, http: web.Request) -> web.Response:
        """The options and what is going on."""
        state = await self._worker.call(
            lambda scheduler: {
                "num_running_requests": len(scheduler.rows),
                "num_waiting_requests": len(scheduler.waiting),
                "is_paused": scheduler.is_paused,
                "weight_version": scheduler.version,
                "work": scheduler.work.to_wire(),
            }
        )
        return json_response({**self._options, "context_len": self._model.context_len, "internal_states": [state]})

    async def health(self, http: web.Request) -> web.Response:
        """200 while the worker's thread takes commands."""
        return await _healthy(self._worker.call(lambda scheduler: None))

    async def health_generate(self, http: web.Request) -> web.Response:
        """200 if a token can be sampled; requests that run or wait show that as well, and a pause stops sampling."""
        is_idle = await self._worker.call(lambda s: not s.is_paused and not s.rows and not s.waiting)
        if not is_idle:
            return await self.health(http)
        sampling = Sampling(max_new_tokens=1, temperature=1.0, top_p=1.0, top_k=1, seed=0)
        probe = Request(rid=f"HEALTH_CHECK_{uuid.uuid4().hex}", input_ids=(0,), sampling=sampling)
        return await _healthy(self._worker.generate([probe]))


async def _healthy(sign: Awaitable[object]) -> web.Response:
    """200 for a sign of life in time, else 503; a generation that failed is no sign of life."""
    try:
        outcome = await asyncio.wait_for(sign, HEALTH_SECONDS)
        errors = [generation.error for generation in outcome if generation.error] if isinstance(outcome, list) else []
        if errors:
            return web.Response(status=503, text=str(errors[0]))
    except (TimeoutError, EngineError) as error:
        return web.Response(status=503, text=str(error) or f"no sign of life for {HEALTH_SECONDS} s")
    return web.Response()
