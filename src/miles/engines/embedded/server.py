"""The HTTP side: SGLang's native endpoints over one ``Worker``."""

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import asdict

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from miles.engines.embedded.adapter_routes import AdapterRoutes
from miles.engines.embedded.adapters import HeldAdapter
from miles.engines.embedded.admin import AdminRoutes
from miles.engines.embedded.answer import answer_of
from miles.engines.embedded.http_json import errors_as_json, json_body, json_response
from miles.engines.embedded.memory_routes import MemoryRoutes
from miles.engines.embedded.model import LoadedModel
from miles.engines.embedded.openai_routes import OpenAiRoutes
from miles.engines.embedded.options import EmbeddedOptions
from miles.engines.embedded.parse import Limits, parse_generate
from miles.engines.embedded.request import Generation, Request
from miles.engines.embedded.weight_routes import WeightRoutes
from miles.engines.embedded.worker import Worker
from miles.errors import EngineError

MAX_BODY_BYTES = 1 << 30
SHUTDOWN_SECONDS = 1.0
logger = logging.getLogger(__name__)


class EmbeddedServer:
    """An engine with its HTTP server; lives on the event loop that starts it."""

    def __init__(self, options: EmbeddedOptions) -> None:
        self._options = options
        self._runner: web.AppRunner | None = None
        self._worker: Worker | None = None
        self.address = ""

    async def start(self) -> str:
        """Load the model, listen, and return the address (``http://host:port``).

        Raises:
            EngineError: the model cannot be served, or the port cannot be bound.
        """
        self._worker = worker = Worker(self._options)
        model = await worker.start()
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[errors_as_json])
        adapter = HeldAdapter(model.network)
        generation = GenerateRoutes(worker, model, self._options, adapter)
        app.add_routes(generation.routes())
        app.add_routes(OpenAiRoutes(generation.sample, generation.limits, model).routes())
        weights = WeightRoutes(worker, model, adapter)
        app.add_routes([*weights.routes(), *AdapterRoutes(worker, adapter).routes(), *MemoryRoutes(worker).routes()])
        app.add_routes(AdminRoutes(worker, model, asdict(self._options), weights).routes())
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS, logger=http_logger()
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._options.host, self._options.port, backlog=4096)
        try:
            await site.start()
        except OSError as error:
            await self.stop()
            raise EngineError(
                f"Cannot listen on {self._options.host}:{self._options.port}: {error}. Choose another port."
            ) from error
        host, port = self._runner.addresses[0][:2]
        self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return self.address

    async def wait(self) -> str:
        """Until the engine ends; why, or "" if it was stopped."""
        if self._worker is None:
            raise EngineError("This engine was never started.")
        return await asyncio.shield(self._worker.ended)

    async def stop(self) -> None:
        """End the engine and stop listening; requests in flight fail."""
        if self._worker is not None:
            await self._worker.stop()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


def http_logger() -> logging.Logger:
    """Without what is no HTTP at all: sglang's router first tries whether an engine speaks gRPC."""
    quiet = logging.getLogger("miles.engines.embedded.http")
    quiet.addFilter(says_more_than_no_http)
    return quiet


def says_more_than_no_http(record: logging.LogRecord) -> bool:
    """Whether a line of the HTTP server's log is about a request."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, BadHttpMessage)


class GenerateRoutes:
    """``/generate``."""

    def __init__(self, worker: Worker, model: LoadedModel, options: EmbeddedOptions, adapter: HeldAdapter) -> None:
        self._worker = worker
        self.tokenizer = model.tokenizer
        seeds = random.Random(options.seed)
        self.limits = Limits(
            context_len=model.context_len,
            vocab_size=model.vocab_size,
            encode=model.tokenizer.encode,
            new_seed=lambda: seeds.getrandbits(63),
            adapters=lambda: adapter.names,
        )

    def routes(self) -> list[web.RouteDef]:
        """What the application serves."""
        return [web.post("/generate", self.generate), web.put("/generate", self.generate)]

    async def generate(self, http: web.Request) -> web.Response:
        """Sample one answer or a batch of them."""
        requests, is_batch = parse_generate(await json_body(http), self.limits)
        answers = [answer_of(generation, self.tokenizer) for generation in await self.sample(requests)]
        return json_response(answers if is_batch else answers[0])

    async def sample(self, requests: Sequence[Request]) -> list[Generation]:
        """Finished generations in the order of the requests, which end with the caller if it is cancelled.

        Raises:
            EngineError: sampling one of them failed.
        """
        rids = {request.rid for request in requests}
        try:
            generations = await self._worker.generate(requests)
        except asyncio.CancelledError:
            logger.info("client left; aborting %d requests", len(rids))
            if not self._worker.ended.done():
                await self._worker.abort(lambda request: request.rid in rids)
            raise
        if failed := next((generation.error for generation in generations if generation.error is not None), None):
            raise EngineError(failed)
        return generations
