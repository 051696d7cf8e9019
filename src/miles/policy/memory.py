"""Out of memory, in words: how large the micro-batch was and which options make it smaller."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from miles.errors import PolicyError
from miles.policy.collate import ForwardInput

CPU_WORDS = ("can't allocate memory", "not enough memory")


@contextmanager
def naming_micro_batch(part: ForwardInput) -> Iterator[None]:
    """Turn running out of memory into an error that says what to lower.

    Raises:
        PolicyError: there was not enough memory.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        spent = isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error) for word in CPU_WORDS)
        if not spent:
            raise
        rows, width = part.input_ids.shape
        raise PolicyError(
            f"out of memory on a micro-batch of {rows} rows × {width} tokens with {len(part.target)} trained ones: {error} "
            f"Lower --max-tokens-per-gpu (below {rows * width}) or --micro-batch-size; --gradient-checkpointing and "
            "--vocab-chunk-size need less at some cost in time, more ranks (--actor-num-gpus-per-node) hold less each."
        ) from error
