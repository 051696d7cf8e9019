"""Weights as an HF folder that transformers, SGLang and the embedded engine load."""

from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from miles.policy.folders import written_aside

WEIGHTS_FILE = "model.safetensors"


def export_weights(causal_lm: Any, folder: Path) -> None:
    """Write config and weights for publishing: quickly, the folder appears whole, but not forced to the disk.

    Raises:
        OSError: the folder cannot be written.
    """
    with written_aside(folder, durable=False) as aside:
        if getattr(causal_lm, "_weight_conversions", None):  # names on disk differ from those in memory; transformers maps them
            causal_lm.save_pretrained(aside)
        else:
            save_file(untied_weights(causal_lm), aside / WEIGHTS_FILE, metadata={"format": "pt"})
            (aside / "config.json").write_text(causal_lm.config.to_json_string())


def untied_weights(causal_lm: Any) -> dict[str, Tensor]:
    """The state dictionary without the names that are tied to another one; loading ties them again."""
    tied = set(causal_lm.all_tied_weights_keys)
    return {name: tensor.contiguous() for name, tensor in causal_lm.state_dict().items() if name not in tied}
