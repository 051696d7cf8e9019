"""A generate function of your own that samples through the engine's OpenAI-style endpoint, as an agent or an SDK would.

    miles train --preset reverse --custom-generate-function-path openai_chat:generate

``engine.through_openai`` says where the endpoint is, counts the call as work of that engine, and calls ``ask`` again with another
engine if this one is lost. ``endpoint.fields`` asks for what training needs beside the text, ``endpoint.answer`` reads it: token
ids, log-probs and weight versions of what was really sampled. With the ``openai`` package:

    client = AsyncOpenAI(base_url=endpoint.base_url, api_key="none")
    reply = await client.chat.completions.create(model=endpoint.model, messages=…, extra_body=endpoint.fields(rid, sampling))
    answer = endpoint.answer(rid, reply.choices[0].model_dump())
"""

import aiohttp

from miles.engines.openai import OpenAiEndpoint
from miles.engines.wire import Answer, EngineApi, SamplingParams
from miles.errors import EngineError
from miles.types import Prompt


async def generate(engine: EngineApi, prompt: Prompt, sampling: SamplingParams, rid: str) -> Answer:
    """The answer of one chat with one message."""

    async def ask(endpoint: OpenAiEndpoint) -> Answer:
        body = {"messages": [{"role": "user", "content": prompt.text}]} | endpoint.fields(rid, sampling)
        url = f"{endpoint.base_url}/chat/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as reply:
            if not reply.ok:
                raise EngineError(f"{endpoint.base_url} answered {reply.status}: {await reply.text()}")
            (choice,) = (await reply.json())["choices"]
        if endpoint.prompt_ids(choice) != prompt.token_ids:  # training takes the prompt's own tokens
            raise EngineError(f"the chat template makes {choice['prompt_token_ids']} of prompt {prompt.index}, not its tokens")
        return endpoint.answer(rid, choice)

    return await engine.through_openai(ask)
