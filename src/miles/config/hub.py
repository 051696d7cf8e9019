"""Models by their name on the Hugging Face hub: found where they were downloaded to, never fetched.

org/name ──► $HF_HUB_CACHE/models--org--name/refs/main ──► …/snapshots/<revision>

The layout is that of https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

import os
import re
from pathlib import Path

NAMED = ("hf_checkpoint", "ref_load", "critic_load")  # options that may hold such a name
_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub_name(text: str) -> bool:
    """Whether a text may be a model's name on the hub."""
    return _NAME.fullmatch(text) is not None and not text.startswith(".")


def cached_model(name: str) -> Path | None:
    """The folder that a model was downloaded to, of its newest revision; None where it was not."""
    model = _cache() / f"models--{name.replace('/', '--')}"
    try:
        revision = (model / "refs" / "main").read_text().strip()
    except OSError:
        return None
    folder = model / "snapshots" / revision
    return folder if folder.is_dir() else None


def how_to_get(name: str) -> str:
    """What to do where it was not."""
    return f"Download it first: `hf download {name}` (on a machine with network), or pass a model's folder"


def _cache() -> Path:
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
