"""``/v1/chat/completions``, ``/v1/completions`` and ``/v1/models``, with SGLang's extensions for token ids and versions."""

import time
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from miles.engines.embedded.http_json import json_body, json_response
from miles.engines.embedded.model import LoadedModel
from miles.engines.embedded.openai_answer import chat_answer, completion_answer
from miles.engines.embedded.openai_parse import Messages, parse_chat, parse_completion
from miles.engines.embedded.parse import Limits
from miles.engines.embedded.request import Generation, Request

Sample = Callable[[Sequence[Request]], Awaitable[list[Generation]]]


class OpenAiRoutes:
    """Handlers over ``sample``, the way in which ``/generate`` samples too."""

    def __init__(self, sample: Sample, limits: Limits, model: LoadedModel) -> None:
        self._sample, self._limits, self._model = sample, limits, model

    def routes(self) -> list[web.RouteDef]:
        """What the application serves."""
        return [
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.complete),
            web.get("/v1/models", self.models),
        ]

    async def chat(self, http: web.Request) -> web.Response:
        """Answer messages."""
        body = await json_body(http)
        generations = await self._sample(parse_chat(body, self._limits, self._template))
        return json_response(chat_answer(body, generations, self._model.tokenizer))

    async def complete(self, http: web.Request) -> web.Response:
        """Go on from a prompt."""
        body = await json_body(http)
        generations = await self._sample(parse_completion(body, self._limits))
        return json_response(completion_answer(body, generations, self._model.tokenizer))

    async def models(self, http: web.Request) -> web.Response:
        """The one model there is."""
        card = {
            "id": self._model.path,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "miles",
            "root": self._model.path,
            "parent": None,
            "max_model_len": self._limits.context_len,
        }
        return json_response({"object": "list", "data": [card]})

    def _template(self, messages: Messages) -> list[int]:
        text = self._model.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = self._model.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids
