"""The line of every key in a TOML text, which ``tomllib`` does not tell.

The text is known to be valid TOML, so that only strings, comments, brackets and line ends have to be told apart.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping

Path = tuple[str, ...]

_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}(?!")' r"|'''.*?'{3,5}(?!')" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)
_PART = re.compile(r'"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'" r"|[A-Za-z0-9_-]+")
_DOTTED = re.compile(rf"[ \t]*(?:{_PART.pattern})(?:[ \t]*\.[ \t]*(?:{_PART.pattern}))*[ \t]*")
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_OPENING, _CLOSING = "[{", "]}"


def lines_of_keys(text: str) -> Mapping[Path, int]:
    """Line, from 1, of every key and table header outside inline tables: ``("train-async", "lr") → 12``."""
    lines: dict[Path, int] = {}
    for path, offset in _statements(text):
        lines.setdefault(path, text.count("\n", 0, offset) + 1)
    return lines


def _statements(text: str) -> Iterator[tuple[Path, int]]:
    table: Path = ()
    place = _skip_space(text, 0)
    while place < len(text):
        start = place
        if text[place] == "[":
            brackets = 2 if text.startswith("[[", place) else 1
            key = _match(_DOTTED, text, place + brackets)
            table = _parts(key.group())
            yield table, start
            place = key.end() + brackets
        else:
            key = _match(_DOTTED, text, place)
            yield table + _parts(key.group()), start
            place = _end_of_value(text, key.end() + 1)
        place = _skip_space(text, place)


def _parts(dotted: str) -> Path:
    written = _PART.findall(dotted)
    return tuple(str(tomllib.loads(f"x = {part}")["x"]) if part[0] in "\"'" else part for part in written)


def _skip_space(text: str, place: int) -> int:
    return _match(_SPACE, text, place).end()


def _end_of_value(text: str, place: int) -> int:
    """Offset of the line end (or comment) that ends the value starting at or after ``place``."""
    depth = 0
    while place < len(text):
        letter = text[place]
        if letter in "\"'":
            place = _match(_STRING, text, place).end()
            continue
        if letter == "#" and depth:
            place = text.find("\n", place)
            if place < 0:
                return len(text)
        elif letter in "#\n" and not depth:
            return place
        depth += (letter in _OPENING) - (letter in _CLOSING)
        place += 1
    return place


def _match(pattern: re.Pattern[str], text: str, place: int) -> re.Match[str]:
    found = pattern.match(text, place)
    if found is None:
        raise ValueError(f"not valid TOML at offset {place}: {text[place : place + 20]!r}")
    return found
