"""A generate function of your own: an answer that ran into the length limit is sampled once more, with another seed.

    miles train --preset reverse --custom-generate-function-path second_try:generate

It is called once for each sample, with this sample's seed in ``sampling``, and is cancelled with its group. The answer it
returns carries the name ``rid``; its ids, log-probs and version spans cover the response alone.
"""

from dataclasses import replace

from miles.engines.wire import Answer, EngineApi, GenerateRequest, SamplingParams
from miles.types import Prompt


async def generate(engine: EngineApi, prompt: Prompt, sampling: SamplingParams, rid: str) -> Answer:
    """The first answer that ends by itself, or the second one."""
    (answer,) = await engine.generate([GenerateRequest(rid, prompt.token_ids, sampling)])
    if answer.finish_reason != "length":
        return answer
    other = replace(sampling, sampling_seed=(sampling.sampling_seed or 0) ^ 1)
    (second,) = await engine.generate([GenerateRequest(f"{rid}-again", prompt.token_ids, other)])
    return replace(second, rid=rid)
