"""An evaluation of your own: whether any of k answers is right, beside the mean.

    miles train --preset reverse --eval-function-path pass_at_k:evaluate --n-samples-per-eval-prompt 4 --eval-temperature 1

``given.weight_version`` is what every engine holds meanwhile; the row of metrics.jsonl names it.
"""

import asyncio

from miles.loops.evaluate import EvalInput
from miles.types import Metrics, mean


async def evaluate(given: EvalInput) -> Metrics:
    """``eval/<name>`` is the mean reward, ``eval/<name>/any`` the share of prompts with a right answer."""
    metrics: Metrics = {}
    for dataset in given.datasets:
        groups = await asyncio.gather(*(given.generate_group(prompt, given.weight_version) for prompt in dataset.prompts))
        rewards = [[sample.reward or 0.0 for sample in group.samples] for group in groups]
        metrics[f"eval/{dataset.name}"] = mean([reward for row in rewards for reward in row])
        metrics[f"eval/{dataset.name}/any"] = mean([float(max(row) >= 1.0) for row in rewards])
    return metrics
