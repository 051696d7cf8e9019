"""New weights while requests are in flight, from a folder, from shared memory or from a process group; and what is held now.

A folder is checked whole before anything changes. Buckets (tensor, distributed) change the weights as they come, between two
steps, within a session of begin and end; whoever sends them pauses the engine meanwhile, as with SGLang.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web
from torch import Tensor

from miles.engines.embedded.adapters import HeldAdapter
from miles.engines.embedded.http_json import json_object, json_response
from miles.engines.embedded.model import LoadedModel
from miles.engines.embedded.parse import BadRequestError
from miles.engines.embedded.scheduler import Scheduler
from miles.engines.embedded.update_body import check_fields, specs_of
from miles.engines.embedded.weights import check_weights, copy_weights, read_weights
from miles.engines.embedded.worker import Worker
from miles.engines.transfer.bucket import empty_bucket
from miles.engines.transfer.checksum import checksum, overall_checksum
from miles.engines.transfer.group import BACKENDS, UpdateGroup, connect_to_group
from miles.engines.transfer.payload import unpack_tensors
from miles.errors import EngineError

GROUP_SECONDS = 1800.0  # torch's own limit, which SGLang has
ALONE = {"tp_rank": 0, "tp_size": 1, "dp_rank": 0, "dp_size": 1, "pp_rank": 0, "pp_size": 1, "rank": 0, "size": 1}
EVERY_UPDATE = {"torch_empty_cache": (True, False), "selector": ("all", "target")}
FROM_DISK: Mapping[str, tuple[Any, ...]] = {
    "load_format": (None, "auto", "safetensors"),
    "is_async": (False,),
    "torch_empty_cache": (True, False),
    "keep_pause": (False,),
    "recapture_cuda_graph": (True, False),
    "token_step": (0,),
    "manifest": (None,),
}
LANDING = ("weight_version", "abort_all_requests", "flush_cache")


class WeightRoutes:
    """Handlers that change or look at the weights. model_path: the folder they were last read from.

    adapter: in the weights; while there is one, no others are taken.
    """

    def __init__(self, worker: Worker, model: LoadedModel, adapter: HeldAdapter) -> None:
        self._worker, self._model, self._adapter = worker, model, adapter
        self.model_path = model.path
        self._groups: dict[str, UpdateGroup] = {}
        self._is_open = False

    def routes(self) -> list[web.RouteDef]:
        """What the application serves."""
        return [
            web.post("/update_weights_from_disk", self.update_from_disk),
            web.post("/begin_weight_update", self.begin),
            web.post("/end_weight_update", self.end),
            web.post("/update_weights_from_tensor", self.update_from_tensor),
            web.post("/init_weights_update_group", self.join_group),
            web.post("/destroy_weights_update_group", self.leave_group),
            web.post("/update_weights_from_distributed", self.update_from_distributed),
            web.post("/weights_checker", self.check),
            web.get("/weights_checker", self.check),
        ]

    async def update_from_disk(self, http: web.Request) -> web.Response:
        """Read and check a folder aside, then swap between two steps."""
        body = await json_object(http, ("model_path", *LANDING), FROM_DISK)
        folder = body.get("model_path")
        if not isinstance(folder, str) or not isinstance(body.get("weight_version"), str | None):
            version = body.get("weight_version")
            raise BadRequestError(
                f"model_path must be a string and weight_version a string or null, got {folder!r} and {version!r}."
            )
        if self._adapter.name:
            return _beside_an_adapter(self._adapter)
        try:
            checked = await asyncio.to_thread(lambda: check_weights(self._model.network, read_weights(folder), folder))
        except EngineError as error:
            return update_response(str(error), status=400)
        answer = await self._land(checked, body)
        self.model_path = str(Path(folder))
        return answer

    async def begin(self, http: web.Request) -> web.Response:
        """Open the session in which buckets come."""
        await json_object(http, (), EVERY_UPDATE)
        if self._adapter.name:
            return _beside_an_adapter(self._adapter)
        if self._is_open:
            return update_response("a weight-update session is already open; call end_weight_update() first", status=400)
        self._is_open = True
        return update_response("Success")

    async def end(self, http: web.Request) -> web.Response:
        """Close it."""
        await json_object(http, (), {})
        if not self._is_open:
            return update_response("no weight-update session is open; call begin_weight_update() first", status=400)
        self._is_open = False
        return update_response("Success")

    async def update_from_tensor(self, http: web.Request) -> web.Response:
        """A bucket in memory that the sender shares."""
        served = ("serialized_named_tensors", *LANDING)
        body = await json_object(http, served, {"load_format": (None,), **EVERY_UPDATE})
        check_fields(body, {"serialized_named_tensors": list, "weight_version": str | None})
        payloads = body["serialized_named_tensors"]
        if len(payloads) != 1 or not isinstance(payloads[0], str):
            raise BadRequestError("serialized_named_tensors must hold one text: this engine has one rank.")
        if not self._is_open:
            return _outside_a_session("update_weights_from_tensor")
        try:
            named = dict(unpack_tensors(payloads[0]))
            checked = check_weights(self._model.network, named, "the bucket", is_whole=False)
        except (ValueError, EngineError) as error:
            return update_response(str(error), status=400)
        return await self._land(checked, body)

    async def join_group(self, http: web.Request) -> web.Response:
        """Meet the sender; returns when all ranks have."""
        body = await json_object(
            http, ("master_address", "master_port", "rank_offset", "world_size", "group_name", "backend"), {}
        )
        kinds = {"master_address": str, "master_port": int, "rank_offset": int, "world_size": int}
        check_fields(body, kinds)
        name, backend = body.get("group_name", "weight_update_group"), body.get("backend", "nccl")
        if backend not in BACKENDS or not isinstance(name, str) or not name:
            known = ", ".join(BACKENDS)
            raise BadRequestError(f"backend must be one of {known} and group_name a name, got {backend!r} and {name!r}.")
        if name in self._groups:
            return update_response(f"The group {name} exists; destroy it first.", status=400)

        def meet() -> UpdateGroup:
            store = connect_to_group(body["master_address"], body["master_port"], body["world_size"], GROUP_SECONDS)
            return UpdateGroup(name, store, body["rank_offset"], body["world_size"], backend, GROUP_SECONDS)

        try:
            self._groups[name] = await asyncio.to_thread(meet)
        except RuntimeError as error:
            return update_response(f"Failed to initialize custom process group: {error}.", status=400)
        return update_response("Succeeded to initialize custom process group.")

    async def leave_group(self, http: web.Request) -> web.Response:
        """Close the connections of a group."""
        body = await json_object(http, ("group_name",), {})
        group = self._groups.pop(body.get("group_name", "weight_update_group"), None)
        if group is None:
            return update_response("The group to be destroyed does not exist.", status=400)
        group.leave()
        return update_response("Succeeded to destroy custom process group.")

    async def update_from_distributed(self, http: web.Request) -> web.Response:
        """A bucket that rank 0 of a group broadcasts."""
        served = ("names", "dtypes", "shapes", "group_name", "load_format", *LANDING)
        body = await json_object(http, served, EVERY_UPDATE)
        check_fields(body, {"names": list, "dtypes": list, "shapes": list, "weight_version": str | None})
        if body.get("load_format") not in (None, "flattened_bucket"):
            raise BadRequestError(f"load_format must be null or flattened_bucket, got {body['load_format']!r}.")
        if not self._is_open:
            return _outside_a_session("update_weights_from_distributed")
        group = self._groups.get(body.get("group_name", "weight_update_group"))
        if group is None:
            return update_response(f"Failed to receive weights: Group {body.get('group_name')} is not joined.", status=400)
        try:
            bucket = empty_bucket(specs_of(body))
            await asyncio.to_thread(group.receive, bucket, flattened=body.get("load_format") == "flattened_bucket")
            checked = check_weights(self._model.network, dict(bucket.tensors()), "the bucket", is_whole=False)
        except (RuntimeError, ValueError, EngineError) as error:
            return update_response(f"Failed to receive weights: {error}", status=400)
        return await self._land(checked, body)

    async def check(self, http: web.Request) -> web.Response:
        """The checksum of every tensor, by its first name."""
        await json_object(http, (), {"action": ("checksum",), "allow_quant_error": (True, False), **EVERY_UPDATE})
        network = self._model.network
        sums = await self._worker.call(lambda _: {name: checksum(tensor) for name, tensor in network.named_parameters()})
        whole = overall_checksum(sums)
        rank = {"checksums": sums, "per_gpu_checksum": whole, "parallelism_info": [{"role": "target", **ALONE}]}
        answer = {"success": True, "message": "Success.", "ranks": [rank], "per_engine_checksum": overall_checksum({"": whole})}
        return json_response(answer)

    async def _land(self, checked: Mapping[str, Tensor], body: Mapping[str, Any]) -> web.Response:
        """Copy checked tensors between two steps, under the version that the body names."""
        version = body.get("weight_version")
        if body.get("abort_all_requests", False):
            await self._worker.abort(lambda request: True)

        def swap(scheduler: Scheduler) -> str | None:
            copy_weights(self._model.network, checked)
            scheduler.weights_replaced(version)
            return scheduler.busy_words() if scheduler.is_paused else None

        unflushed = await self._worker.call(swap)
        if unflushed and body.get("flush_cache", True):
            return update_response(
                f"Weights were updated, but the cache was not flushed because {unflushed}. "
                "Retract or finish them, then call /flush_cache; or send flush_cache = false.",
                status=400,
            )
        named = f" Weight version updated to {version}." if version is not None else ""
        return update_response(f"Succeeded to update model weights.{named}")


def update_response(message: str, status: int = 200) -> web.Response:
    """SGLang's answer to an update."""
    return json_response({"success": status == 200, "message": message, "num_paused_requests": 0}, status=status)


def _beside_an_adapter(adapter: HeldAdapter) -> web.Response:
    words = f"the adapter {adapter.name} is merged into the weights; unload it before others replace them"
    return update_response(words, status=400)


def _outside_a_session(what: str) -> web.Response:
    return update_response(f"{what} must run between begin_weight_update() and end_weight_update()", status=400)
