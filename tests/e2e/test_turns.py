"""Engines and policy that take turns: a colocated run is the run with devices of their own, and memory really comes and goes."""

from collections.abc import Callable

import pytest

from tests.e2e.conftest import Collector
from tests.e2e.test_bits import SAME, without_times

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
Run = Callable[..., Collector]


def test_a_colocated_run_is_the_same_run(run_here: Run) -> None:
    apart = run_here("train", *SAME[:-1], "4", run_dir="apart")
    shared = run_here("train", *SAME[:-1], "4", "--colocate", "--check-weight-update", run_dir="shared")
    assert without_times(shared.rows) == without_times(apart.rows)
