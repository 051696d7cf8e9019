"""SGLang's endpoints for LoRA adapters, and the one that names the weights anew."""

import asyncio
from pathlib import Path

from aiohttp import web

from miles.engines.embedded.adapters import HeldAdapter
from miles.engines.embedded.http_json import json_object, json_response
from miles.engines.embedded.scheduler import Scheduler
from miles.engines.embedded.update_body import check_fields
from miles.engines.embedded.worker import Worker
from miles.errors import EngineError


class AdapterRoutes:
    """Handlers that change the adapter."""

    def __init__(self, worker: Worker, adapter: HeldAdapter) -> None:
        self._worker, self._adapter = worker, adapter
        self._changing = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """What the application serves."""
        return [
            web.post("/load_lora_adapter", self.load),
            web.post("/unload_lora_adapter", self.unload),
            web.post("/update_weight_version", self.name_version),
        ]

    async def load(self, http: web.Request) -> web.Response:
        """Read an adapter aside, then merge it between two steps; one of the same name is replaced, so that name stays known."""
        body = await json_object(http, ("lora_name", "lora_path"), {"pinned": (False,)})
        check_fields(body, {"lora_name": str, "lora_path": str})
        async with self._changing:
            try:
                merged = await asyncio.to_thread(self._adapter.read, body["lora_name"], Path(body["lora_path"]))
            except EngineError as error:
                return self._response(str(error))

            def swap(scheduler: Scheduler) -> None:
                self._adapter.put_on(body["lora_name"], merged)
                scheduler.weights_replaced(None)

            await self._worker.call(swap)
        return self._response("")

    async def unload(self, http: web.Request) -> web.Response:
        """Put the weights back between two steps."""
        body = await json_object(http, ("lora_name",), {})
        check_fields(body, {"lora_name": str})

        def swap(scheduler: Scheduler) -> None:
            self._adapter.take_off()
            scheduler.weights_replaced(None)

        async with self._changing:
            if body["lora_name"] not in self._adapter.names:
                return self._response(f"LoRA adapter {body['lora_name']} is not loaded.")
            await self._worker.call(swap)
        return self._response("")

    async def name_version(self, http: web.Request) -> web.Response:
        """What is sampled from now on comes from weights of this version."""
        body = await json_object(http, ("new_version", "abort_all_requests"), {})
        check_fields(body, {"new_version": str})
        version = body["new_version"]
        if body.get("abort_all_requests", True):
            await self._worker.abort(lambda request: True)
        await self._worker.call(lambda scheduler: scheduler.weights_replaced(version))
        return json_response({"success": True, "message": f"Weight version updated to {version}", "new_version": version})

    def _response(self, error: str) -> web.Response:
        loaded = {name: name for name in self._adapter.names}
        answer = {"success": not error, "error_message": error or None, "loaded_adapters": loaded}
        return json_response(answer, status=400 if error else 200)
