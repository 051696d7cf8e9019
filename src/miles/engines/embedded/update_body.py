"""What the body of a weight update must look like."""

from collections.abc import Mapping
from types import UnionType
from typing import Any

from miles.engines.embedded.parse import BadRequestError
from miles.engines.transfer.specs import TensorSpec


def check_fields(body: Mapping[str, Any], kinds: Mapping[str, type | UnionType]) -> None:
    """Every field is there and of its kind; one that may be null may be missing.

    Raises:
        BadRequestError: names the field.
    """
    for name, kind in kinds.items():
        if not isinstance(body.get(name), kind):
            word = getattr(kind, "__name__", None) or str(kind)
            raise BadRequestError(f"{name} must be {word.replace(' | None', ' or null')}, got {body.get(name)!r}.")


def specs_of(body: Mapping[str, Any]) -> list[TensorSpec]:
    """``names``, ``dtypes`` and ``shapes``, which go together.

    Raises:
        ValueError: they do not.
    """
    names, dtypes, shapes = (body[field] for field in ("names", "dtypes", "shapes"))
    if not len(names) == len(dtypes) == len(shapes):
        raise ValueError(f"{len(names)} names, {len(dtypes)} dtypes and {len(shapes)} shapes do not go together")
    try:
        return [
            TensorSpec(str(name), str(dtype), tuple(int(size) for size in shape))
            for name, dtype, shape in zip(names, dtypes, shapes, strict=True)
        ]
    except TypeError as error:
        raise ValueError(f"shapes must be lists of whole numbers: {error}") from error
