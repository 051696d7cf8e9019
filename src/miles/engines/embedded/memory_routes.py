"""Memory given back while somebody else needs it, and taken again: an engine that shares its device with the policy.

Of this engine that is the KV cache. The weights stay where they are, so the tags ``weights`` and ``cuda_graph`` change nothing.
"""

from aiohttp import web

from miles.engines.embedded.http_json import json_object, json_response
from miles.engines.embedded.parse import BadRequestError
from miles.engines.embedded.scheduler import Scheduler
from miles.engines.embedded.worker import Worker

TAGS = ("kv_cache", "weights", "cuda_graph")


class MemoryRoutes:
    """Handlers that release and resume memory."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._released: set[str] = set()

    def routes(self) -> list[web.RouteDef]:
        """What the application serves."""
        return [
            web.post("/release_memory_occupation", self.release),
            web.post("/resume_memory_occupation", self.resume),
        ]

    async def release(self, http: web.Request) -> web.Response:
        """Free what the tags name; refused while requests hold the cache. Requests that come now wait."""
        tags = await _tags(http)
        if "kv_cache" in tags:
            words = await self._worker.call(_release_cache)
            if words is not None:
                raise BadRequestError(f"Memory is not released: {words}. Pause with mode retract or abort first.")
        self._released |= tags
        return json_response(None)

    async def resume(self, http: web.Request) -> web.Response:
        """Take it again."""
        tags = await _tags(http)
        if tags - self._released:
            raise BadRequestError(f"{', '.join(sorted(tags - self._released))} was not released.")
        if "kv_cache" in tags:
            await self._worker.call(Scheduler.resume_cache)
        self._released -= tags
        return json_response(None)


def _release_cache(scheduler: Scheduler) -> str | None:
    """Free it, or the words for who holds it."""
    words = scheduler.busy_words()
    if words is None:
        scheduler.release_cache()
    return words


async def _tags(http: web.Request) -> set[str]:
    body = await json_object(http, ("tags",), {})
    tags = body.get("tags") or list(TAGS)
    if not isinstance(tags, list) or not set(tags) <= set(TAGS):
        raise BadRequestError(f"tags must be some of {', '.join(TAGS)}, got {tags!r}.")
    return set(tags)
