"""A model that nobody has trained, in the shape of another one's config.json."""

from pathlib import Path

import torch

from miles.errors import PolicyError
from miles.policy.checkpoint import copy_companions
from miles.policy.export import write_weights
from miles.policy.folders import written_aside


def write_random_model(source: Path, folder: Path, seed: int) -> None:
    """Write an HF folder with random weights, and everything of ``source`` that is no weight; it appears whole.

    Raises:
        PolicyError: the config is of no causal LM, or the folder cannot be written.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(source, local_files_only=True)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            causal_lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with written_aside(folder, durable=False) as aside:
            copy_companions(source, aside)
            write_weights(causal_lm, aside)
    except (OSError, ValueError, KeyError) as error:
        raise PolicyError(
            f"no model with random weights can be made from {source}: {error}. --hf-checkpoint must name a folder with the "
            "config.json of a causal LM."
        ) from error
