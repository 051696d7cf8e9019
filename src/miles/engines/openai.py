"""The OpenAI-style endpoint of an engine, for the user's own code: what to ask so that the answer can be trained on.

    async def ask(endpoint: OpenAiEndpoint) -> Answer:
        body = {"messages": [...]} | endpoint.fields(rid, sampling)
        reply = await post(f"{endpoint.base_url}/chat/completions", body)
        return endpoint.answer(rid, reply["choices"][0])

    answer = await engine.through_openai(ask)

A text alone cannot be trained on: it may be cut into other tokens than those that were sampled. So SGLang's extensions
``return_token_ids`` and ``return_meta_info`` are asked for; both servers have them in ``/v1/chat/completions``.
When ``ask`` is cancelled or fails, what it asked for ends at the engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from miles.engines.answers import adapter_field, cache_key, parse_answer, wire_rid
from miles.engines.wire import Answer, SamplingParams
from miles.errors import EngineError


@dataclass(frozen=True, slots=True)
class OpenAiEndpoint:
    """One engine's, as it is now: the weights may change while a request runs.

    address: ``http://host:port`` of the engine.
    model: what the endpoint calls its model.
    version: of the weights that were published last.
    asks: called with the name of every request that ``fields`` is made for, so that it can be ended at the engine.
    adapter: LoRA adapter that is asked for; empty where the engine was given none.
    """

    address: str
    model: str
    version: int
    asks: Callable[[str], None]
    adapter: str = ""

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as ``base_url``; any API key will do."""
        return f"{self.address}/v1"

    def fields(self, rid: str, sampling: SamplingParams) -> dict[str, Any]:
        """What to add to the body of a chat completion, so that it is sampled as the run samples and ``answer`` can read it.

        With the ``openai`` package: ``extra_body=endpoint.fields(rid, sampling)``. For one answer: SGLang gives each of several
        (``n``) a name of its own, under which nobody can end it.
        """
        self.asks(rid)
        wire = sampling.to_wire()
        return {
            "model": self.model,
            "rid": wire_rid(rid),
            "max_completion_tokens": wire.pop("max_new_tokens"),
            "seed": wire.pop("sampling_seed", None),
            **wire,
            "logprobs": True,
            "return_token_ids": True,
            "return_meta_info": True,
            "extra_key": cache_key(self.version),
            **adapter_field(self.adapter),
        }

    def answer(self, rid: str, choice: Mapping[str, Any]) -> Answer:
        """One object of ``choices`` as an answer: the tokens, log-probs and versions of what was really sampled.

        Raises:
            EngineError: it was not asked with ``fields``.
        """
        try:
            return parse_answer(rid, {"meta_info": choice["meta_info"], "text": choice["message"]["content"]})
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(
                f"{self.base_url}: the choice for {rid} lacks what training needs ({error!r}). Ask with `fields`."
            ) from error

    def prompt_ids(self, choice: Mapping[str, Any]) -> tuple[int, ...]:
        """The tokens that the messages became."""
        return tuple(choice["prompt_token_ids"])
