"""What a model folder's tokenizer files say, read without transformers; None where they do not say it."""

import json
from pathlib import Path
from typing import Any

LARGEST_BYTES = 64 << 20


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where there is none that can be read."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return None
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def has_chat_template(folder: Path) -> bool | None:
    """Whether the tokenizer has one; None where there is no ``tokenizer_config.json``."""
    config = read_json(folder / "tokenizer_config.json")
    if config is None:
        return None
    file = folder / "chat_template.jinja"
    in_file = file.is_file() and bool(file.read_text(errors="replace").strip())
    return in_file or bool(config.get("chat_template")) or (folder / "additional_chat_templates").is_dir()


def largest_token_id(folder: Path) -> int | None:
    """The largest id that ``tokenizer.json`` gives a token."""
    content = read_json(folder / "tokenizer.json")
    model = content.get("model") if content else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if content is None or vocabulary is None:
        return None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
    ids += [token["id"] for token in content.get("added_tokens") or () if isinstance(token, dict) and "id" in token]
    return max((number for number in ids if isinstance(number, int)), default=None)
