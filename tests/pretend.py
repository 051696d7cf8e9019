"""A machine that has what this one may lack, as far as the checks of the configuration look at it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from miles.config import resolve as resolving
from miles.config.facts import Facts


@contextmanager
def a_machine_with(**has: bool) -> Iterator[None]:
    """``has_cuda``, ``has_sglang``, ``has_router`` and ``has_varlen`` as given, whatever is installed."""
    real = resolving.read_facts

    def read_facts(*given: Any) -> Facts:
        return replace(real(*given), **has)

    with mock.patch.object(resolving, "read_facts", read_facts):
        yield
