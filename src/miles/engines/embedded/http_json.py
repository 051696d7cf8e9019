"""JSON in and out of aiohttp handlers, and errors as sentences."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from aiohttp import web

from miles.engines.embedded.parse import BadRequestError, refuse_fields
from miles.errors import EngineError

logger = logging.getLogger(__name__)


async def json_body(http: web.Request) -> Any:
    """The parsed body; an empty one is an empty object."""
    raw = await http.read()
    try:
        return orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"The body of {http.path} is not JSON: {error}.") from error


async def json_object(http: web.Request, served: tuple[str, ...], neutral: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The body, an object with no other fields than ``served``, and ``neutral`` ones with values that change nothing."""
    body = await json_body(http)
    if not isinstance(body, dict):
        raise BadRequestError(f"The body of {http.path} must be a JSON object.")
    refuse_fields(body, served, neutral, http.path)
    return body


def json_response(content: Any, status: int = 200) -> web.Response:
    """``content`` as JSON."""
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")


@web.middleware
async def errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Sentences for the sender: 400 for what it asked, 500 for what failed here."""
    try:
        return await handler(request)
    except BadRequestError as error:
        return json_response({"error": {"message": str(error)}}, status=400)
    except web.HTTPException as error:
        return json_response({"error": {"message": f"{request.method} {request.path}: {error.reason}"}}, status=error.status)
    except EngineError as error:
        return json_response({"error": {"message": str(error)}}, status=500)
    except Exception as error:  # one request fails, the server goes on
        logger.exception("%s %s failed", request.method, request.path)
        return json_response({"error": {"message": f"{type(error).__name__}: {error}"}}, status=500)
