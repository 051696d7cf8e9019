"""A server that answers what a test says, and requests and answers to go with it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from miles.engines.wire import GenerateRequest, SamplingParams

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def answering(handler: Handler) -> AsyncIterator[str]:
    """A server of which every path is answered by ``handler``."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def request(rid: str, length: int = 5, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(rid, (5, 6, 7), SamplingParams(length, ignore_eos=True, **sampling))


def answer_body(spans: list[tuple[int, int, int]], num_tokens: int, kind: str = "length") -> dict[str, Any]:
    return {
        "text": "t",
        "meta_info": {
            "finish_reason": {"type": kind},
            "output_token_logprobs": [[-0.5, i, None] for i in range(num_tokens)],
            "weight_versions": [{"version": str(v), "start": s, "end": e} for v, s, e in spans],
        },
    }
