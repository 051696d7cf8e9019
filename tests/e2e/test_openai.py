"""Answers made by parts of one's own: through the OpenAI-style endpoint as natively, bit for bit; and in several turns."""

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


def test_only_what_the_model_said_is_trained_on(run_here: Callable[..., Collector], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples/custom_parts"))
    flags = ("--environment-path", "try_again:respond", "--max-turns", "3", "--custom-rm-path", "try_again:reward")
    more = ("--rm-type", "none", "--rollout-max-response-len", "48", "--num-rollout", "3", "--skip-eval-before-train")
    for command, schedule in (("train", ()), ("train-async", ("--fully-async",))):
        rows = run_here(command, *flags, *more, *schedule, run_dir=command).rows
        trained = [row for row in rows if "train/loss" in row]
        assert len(trained) == 3
        assert min(row["rollout/response_len/mean"] for row in trained) > 12  # more than one turn and a reply
        assert trained[0]["train/train_rollout_logprob_abs_diff"] < 1e-5  # of what the engine sampled, replies before it included
