"""A run whose answers come through the engines' OpenAI-style endpoint is the run that samples natively, bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Collector
from tests.e2e.test_bits import SAME, without_times

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_the_way_of_asking_changes_nothing(run_here: Callable[..., Collector], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples/custom_parts"))
    flags = (*SAME[:-1], "2", "--skip-eval-before-train")
    native = run_here("train", *flags, run_dir="native")
    through = run_here("train", *flags, "--custom-generate-function-path", "openai_chat:generate", run_dir="through")
    assert without_times(through.rows) == without_times(native.rows)
