"""What a value of an option looks like: one or many, a pair or not, which words; read from the annotation once."""

import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of an option's values.

    scalar: type of one value, or of the second half of a pair (``bool``, ``int``, ``float``, ``str``, ``Path``).
    choices: the words allowed; empty where any value of ``scalar`` is.
    repeated: any number of values.
    pairs: every value is NAME VALUE.
    optional: may be unset (``none``).
    """

    scalar: type
    choices: tuple[Any, ...] = ()
    repeated: bool = False
    pairs: bool = False
    optional: bool = False


def shape_of(annotation: Any) -> Shape:
    """The shape of ``T``, ``T | None``, ``Literal[...]``, ``tuple[T, ...]`` or ``tuple[tuple[str, T], ...]``."""
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [part for part in get_args(annotation) if part is not type(None)]
        if len(inner) != 1:
            raise TypeError(f"an option holds one type, not {annotation!r}")
        one = shape_of(inner[0])
        return Shape(one.scalar, one.choices, one.repeated, one.pairs, optional=True)
    if get_origin(annotation) is Literal:
        words = get_args(annotation)
        if set(words) <= {True, False}:
            return Shape(bool)
        return Shape(type(words[0]), words)
    if get_origin(annotation) is tuple:
        item = get_args(annotation)[0]
        if get_origin(item) is tuple:
            return Shape(get_args(item)[1], repeated=True, pairs=True)
        return Shape(shape_of(item).scalar, repeated=True)
    if annotation in (bool, int, float, str, Path):
        return Shape(annotation)
    raise TypeError(f"no option can hold {annotation!r}")
