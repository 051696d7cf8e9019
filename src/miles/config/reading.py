"""Plain Python out of a raw value: the text of a flag or variable, or the number, string, list or table of a file.

All three forms of a value end in the same object, so that from here on nobody asks where it came from. Bounds and
choices are left to the option sets.
"""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from miles.config.hub import NAMED, cached_model, is_hub_name
from miles.config.registry import Option, find_option, nearest_option, option_name

UNSET = "none"
MASK = "…"
LARGEST_WHOLE = 2**63 - 1
_SECRET_WORDS = {"secret", "password", "credential", "credentials", "apikey"}
_TRUE = {"true", "1", "yes", "on"}
_FALSE = {"false", "0", "no", "off"}


class UnreadableError(ValueError):
    """A raw value has the wrong form; ``why`` is a clause, ``remedy`` an imperative sentence."""

    def __init__(self, why: str, remedy: str) -> None:
        self.why, self.remedy = why, remedy
        super().__init__(f"{why}. {remedy}")


def read_value(option: Option, raw: Any, folder: Path) -> Any:
    """The value of an option; relative paths are taken relative to ``folder``.

    Raises:
        UnreadableError: it has the wrong form.
    """
    shape = option.shape
    if raw is None or (isinstance(raw, str) and raw.lower() == UNSET and (shape.optional or shape.repeated)):
        return () if shape.repeated else None
    if option.meta.kind == "arguments":
        return tuple((name, text) for name, value in _pairs(option, raw) for text in _argument_texts(value))
    if shape.pairs:
        return tuple((name, _read_one(option, value, folder)) for name, value in _pairs(option, raw))
    if shape.repeated:
        return tuple(_read_one(option, value, folder) for value in _items(option, raw))
    return _read_one(option, raw, folder)


def written(value: Any) -> str:
    """A raw or read value as text, the same for all forms: ``true``, ``none``, ``a, b``, ``name=path, …``."""
    if value is None:
        return UNSET
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ", ".join(_written_item(item) for item in value.items())
    if isinstance(value, (list, tuple)):
        return UNSET if not value else ", ".join(_written_item(item) for item in value)
    return short_exponent(str(value)) if isinstance(value, float) else str(value)


def short_exponent(text: str) -> str:
    """A number as people write it: ``3e-5``, where Python writes ``3e-05``."""
    return re.sub(r"e([+-])0(\d)$", r"e\1\2", text)


def shown(option: Option, value: Any) -> str:
    """A value of an option as text for the user's eyes; secrets are masked."""
    return MASK if option.meta.secret and value is not None else written(value)


def shown_unknown(name: str, value: Any) -> str:
    """The value of a name that no option has; masked where it looks like the name of a secret, mistyped."""
    near = find_option(name) or nearest_option(name)
    return MASK if (near is not None and near.meta.secret) or names_secret(name) else written(value)


def names_secret(name: str) -> bool:
    """Whether a name is that of a secret by its words: ``api-key``, ``ssl-keyfile-password``."""
    words = option_name(name).split("_")
    return bool(_SECRET_WORDS & set(words)) or "api_key" in "_".join(words)


def shown_given(option: Option, raw: Any, folder: Path) -> str:
    """A raw value as it was written, lists and pairs in one spelling whatever their form; secrets are masked."""
    if not option.shape.repeated:
        return shown(option, raw)
    try:
        return shown(option, read_value(option, raw, folder))
    except UnreadableError:
        return shown(option, raw)


def _written_item(item: Any) -> str:
    if isinstance(item, (list, tuple)) and len(item) == 2:
        return f"{item[0]}={MASK if names_secret(str(item[0])) else written(item[1])}"
    return json.dumps(item) if isinstance(item, str) and ("," in item or not item.strip()) else written(item)


def _read_one(option: Option, raw: Any, folder: Path) -> Any:
    scalar = option.shape.scalar
    if scalar is bool:
        return _read_switch(option, raw)
    if scalar is int:
        return _read_whole(option, raw)
    if scalar is float:
        return _read_number(option, raw)
    if not isinstance(raw, (str, Path)):
        raise UnreadableError("is no text", f"Write {option.name} in quotes")
    if not str(raw):
        raise UnreadableError("is empty", f"Give {option.flag} a value, or leave it out")
    return _read_path(option, raw, folder) if scalar is Path else str(raw)


def _read_path(option: Option, raw: str | Path, folder: Path) -> Path:
    try:
        path = folder / Path(raw).expanduser()
    except RuntimeError as error:
        raise UnreadableError("names a home folder that there is not", f"Write out the path of {option.flag}") from error
    try:
        path.exists()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreadableError(f"is no path that can be looked up: {reason}", f"Give {option.flag} another path") from error
    if option.name in NAMED and not path.exists() and is_hub_name(str(raw)):
        return cached_model(str(raw)) or path
    return path


def _read_switch(option: Option, raw: Any) -> bool:
    word = raw.lower() if isinstance(raw, str) else str(int(raw)) if isinstance(raw, (bool, int)) else ""
    if word not in _TRUE | _FALSE:
        raise UnreadableError("is neither true nor false", f"Set {option.name} to true or false")
    return word in _TRUE


def _read_whole(option: Option, raw: Any) -> int:
    number = raw if isinstance(raw, int) and not isinstance(raw, bool) else None
    if isinstance(raw, str):
        with contextlib.suppress(ValueError):
            number = int(raw)
    if number is None:
        raise UnreadableError("is not a whole number", f"Give {option.flag} a whole number{_range(option)}")
    if abs(number) > LARGEST_WHOLE:
        raise UnreadableError("is too large for a whole number", f"Give {option.flag} a whole number within 64 bits")
    return number


def _read_number(option: Option, raw: Any) -> float:
    if isinstance(raw, (int, float, str)) and not isinstance(raw, bool):
        with contextlib.suppress(ValueError, OverflowError):
            return float(raw)
    raise UnreadableError("is not a number", f"Give {option.flag} a number{_range(option)}")


def _range(option: Option) -> str:
    return "".join(f" {BOUND_WORDS[bound]} {limit:g}" for bound, limit in option.bounds)


BOUND_WORDS = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most"}


def _items(option: Option, raw: Any) -> Sequence[Any]:
    if isinstance(raw, str):
        parsed = _json(option, raw) if raw.lstrip().startswith("[") else [part.strip() for part in raw.split(",") if part.strip()]
        return _items(option, parsed)
    if isinstance(raw, (list, tuple)):
        return raw
    raise UnreadableError("is no list", f"Write {option.name} as a list: [ … ]")


def _pairs(option: Option, raw: Any) -> Sequence[tuple[str, Any]]:
    if isinstance(raw, str):
        if raw.lstrip().startswith(("{", "[")):
            return _pairs(option, _json(option, raw))
        raw = [part.strip().split("=", 1) for part in raw.split(",") if part.strip()]
    if isinstance(raw, Mapping):
        return [(str(name), value) for name, value in raw.items()]
    if isinstance(raw, (list, tuple)) and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in raw):
        return [(str(name), value) for name, value in raw]
    raise UnreadableError(
        f"does not consist of pairs {option.metavar}",
        f"Pass {option.flag} {option.metavar} for each, or write a table {option.name} = {{ name = … }} in a file",
    )


def _argument_texts(value: Any) -> Sequence[str]:
    """A server argument's values as its own command line would have them: a list is several, a table is JSON."""
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _argument_texts(item)]
    return [json.dumps(value) if isinstance(value, Mapping) else written(value)]


def _json(option: Option, text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UnreadableError(f"is no JSON: {error}", f"Correct it, or give {option.flag} values separated by commas") from error
