"""An evaluation of your own that is given a checkpoint folder: how far the weights have moved from where the run began.

    miles train --preset reverse --eval-checkpoint-function-path moved_weights:evaluate --eval-interval 25

It runs in a process of its own beside training; ``folder`` is an HF folder with the published weights and the tokenizer, which
transformers, lm-eval and others load. The numbers stand in ``metrics.jsonl`` as ``eval/<name>``.
"""

import math
from pathlib import Path

from safetensors import safe_open


def evaluate(folder: Path, weight_version: int) -> dict[str, float]:
    """``eval/rms``: root mean square of all weights; ``eval/num_weights``: how many they are."""
    squares, number = 0.0, 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - the file is no mapping
                tensor = file.get_tensor(name).double()
                squares, number = squares + float(tensor.square().sum()), number + tensor.numel()
    return {"rms": math.sqrt(squares / number), "num_weights": float(number)}
