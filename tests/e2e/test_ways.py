"""Ways to evaluate, continued answers and a data source of one's own, in whole runs, also over a resume."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Collector
from tests.e2e.test_bits import SAME, without_times

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]
Run = Callable[..., Collector]
EXAMPLES = Path(__file__).parents[2] / "examples/custom_parts"


def test_engines_of_their_own_evaluate_while_training_goes_on(run_here: Run, tmp_path: Path) -> None:
    run = run_here(
        "train-async", "--fully-async", "--num-rollout", "24", "--eval-interval", "6", "--eval-num-gpus", "1",
        "--save-interval", "6", "--keep-checkpoints", "1", "--keep-best-by", "eval/reverse",
    )  # fmt: skip
    evaluations = [row for row in run.rows if "eval/reverse" in row]
    assert [(row["rollout_id"] + 1, row["eval/weight_version"]) for row in evaluations] == [(n, n) for n in (0, 6, 12, 18, 24)]
    assert evaluations[0]["eval/reverse"] < 0.6 < evaluations[-1]["eval/reverse"]
    order = [("eval/reverse" in row, row["rollout_id"]) for row in run.rows]
    assert any(is_eval and any(later > here for later_eval, later in order[:place] if not later_eval)
               for place, (is_eval, here) in enumerate(order)), "no step was trained meanwhile"  # fmt: skip
    scores = json.loads((tmp_path / "run" / "checkpoints" / "scores.json").read_text())
    left = {path.name for path in (tmp_path / "run" / "checkpoints").glob("rollout-*")}
    assert "rollout-000023" in left and len(left) <= 2
    assert max(scores[name] for name in left) == max(scores.values()), "the best one stays"


def test_a_function_that_is_given_a_folder_evaluates(run_here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    run = run_here(
        "train", "--num-rollout", "6", "--eval-interval", "3", "--eval-checkpoint-function-path", "moved_weights:evaluate"
    )
    rows = [row for row in run.rows if "eval/rms" in row]
    assert [(row["rollout_id"] + 1, row["eval/weight_version"]) for row in rows] == [(n, n) for n in (0, 3, 6)]
    assert len({row["eval/rms"] for row in rows}) == 3, "three versions were measured"


def test_unfinished_answers_are_continued_also_after_a_resume(run_here: Run) -> None:
    flags = (
        "--over-sampling-batch-size", "24", "--partial-rollout", "--mask-offpolicy-in-partial-rollout",
        "--rollout-submission-granularity", "sample", "--engine-max-running-requests", "32",
    )  # fmt: skip
    first = run_here("train", "--num-rollout", "6", "--lr-decay-style", "constant", *flags)
    assert max(row["rollout/partial/num_groups"] for row in first.rows if "train/loss" in row) > 0
    again = run_here("train", "--num-rollout", "12", "--lr-decay-style", "constant", *flags)
    assert any("unfinished groups" in note for note in again.notes)
    steps = [row for row in [*first.rows, *again.rows] if "train/loss" in row]
    assert [row["rollout_id"] for row in steps] == list(range(12))
    assert max(row["rollout/spans_versions_share"] for row in steps) > 0
    assert max(row["rollout/masked/share"] for row in steps) > 0
    last = steps[-1]
    assert last["ledger/trained"] == 12 * 16
    assert last["ledger/issued"] == last["ledger/trained"] + last["ledger/waiting"] + last["ledger/buffered"]


def test_a_data_source_goes_on_after_a_resume(run_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(EXAMPLES / "growing_words.py", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    flags = (*SAME[:-2], "--data-source-path", "growing_words:GrowingWords", "--num-rollout")
    whole = run_here("train", *flags, "6", run_dir="whole")
    run_here("train", *flags, "3", run_dir="halves")
    run_here("train", *flags, "6", run_dir="halves")
    rows = [json.loads(line) for line in (tmp_path / "halves" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in without_times(rows) if "train/loss" in row]
    assert steps == [row for row in without_times(whole.rows) if "train/loss" in row]
