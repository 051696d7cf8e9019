"""What a tensor on its way is called and how large it is; loads no torch, so that the driver can speak of it."""

import math
from dataclasses import dataclass

ELEMENT_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a bucket. dtype: torch's word for it (``float32``)."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def element_bytes(self) -> int:
        """Of one element.

        Raises:
            ValueError: no weights have such a type.
        """
        if self.dtype not in ELEMENT_BYTES:
            raise ValueError(f"{self.name} has dtype {self.dtype!r}; known are {', '.join(ELEMENT_BYTES)}")
        return ELEMENT_BYTES[self.dtype]

    @property
    def num_bytes(self) -> int:
        """Of its elements."""
        return math.prod(self.shape) * self.element_bytes
