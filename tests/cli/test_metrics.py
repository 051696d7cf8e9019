"""``miles metrics``: the book beside the numbers of a run."""

import json
import re
from pathlib import Path

import pytest

from miles.tracking.metric_book import metric_book
from tests.cli.conftest import miles
from tests.cli.test_completion import tab

pytestmark = pytest.mark.cli
RUN = "runs/one"


@pytest.fixture
def run(home: Path) -> Path:
    """A run whose metrics have a course."""
    rows = [
        {"rollout_id": 0, "train/ess": 0.5, "eval/weight_version": 0, "my/own": 3},
        {"rollout_id": 1, "train/ess": None, "rollout/dropped/stale": 2},
        {"rollout_id": 2, "train/ess": 1.0, "train/importance_ratio": 1.25},
    ]
    file = home / RUN / "metrics.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def facts(*words: str) -> dict[str, str]:
    lines = miles("metrics", "explain", *words).splitlines()[2:]
    return dict(re.split(r" {2,}", line.strip(), maxsplit=1) for line in lines if re.match(r"  \S", line))


def test_one_metric_in_full() -> None:
    head, _, *lines = miles("metrics", "explain", "train/train_rollout_logprob_abs_diff").splitlines()
    assert head.startswith("train/train_rollout_logprob_abs_diff: Mean of |log π_old − log μ|")
    causes = [line for line in lines if re.search(r"\d\. ", line)]
    assert len(causes) == len(metric_book()["train/train_rollout_logprob_abs_diff"].causes)
    assert "--max-weight-staleness" in facts("logprob_abs_diff")["decided by"]


def test_one_metric_in_a_run(run: Path) -> None:
    found = facts("ess", RUN)
    assert found["in the run"] == f"{RUN}: 3 rows, first 0.5, last 1"
    assert "1 of them are null: NaN or infinite" in miles("metrics", "explain", "ess", RUN)
    assert found["beside it"] == "train/importance_ratio = 1.25"
    assert found["decided by"].startswith("off_policy_correction = tis (")
    assert facts("train/lr", RUN)["in the run"] == f"{RUN} has no such number"


def test_one_metric_in_a_run_as_data(run: Path) -> None:
    data = json.loads(miles("metrics", "explain", "ess", RUN, "--format", "json"))
    assert (data["name"], data["unit"]) == ("train/ess", "share")
    assert data["run"]["values"] == [0.5, None, 1.0]
    assert data["run"]["related"] == {"train/importance_ratio": 1.25}
    assert set(data["run"]["options"]) == {"off_policy_correction", "tis_clip", "max_weight_staleness"}


def test_a_number_that_became_none_is_the_last_one(run: Path) -> None:
    with run.open("a") as file:
        file.write(json.dumps({"rollout_id": 3, "train/ess": None}) + "\n")
    assert facts("ess", RUN)["in the run"].endswith("first 0.5, last null")
    assert re.search(r"^train/ess +null$", miles("metrics", "list", RUN), re.MULTILINE)


def test_the_list_of_all() -> None:
    lines = miles("metrics", "list").splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(metric_book())
    assert [entry["name"] for entry in json.loads(miles("metrics", "list", "--format", "json"))] == list(metric_book())


def test_the_list_of_a_run_has_what_it_wrote_in_the_order_of_the_book(run: Path) -> None:
    rows = [re.split(r" {2,}", line) for line in miles("metrics", "list", RUN).splitlines()]
    assert rows == [
        ["rollout_id", "2 rollouts"],
        ["rollout/dropped/stale", "2 groups"],
        ["train/importance_ratio", "1.25"],
        ["train/ess", "1"],
        ["eval/weight_version", "0 versions"],
        ["my/own", "3"],
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["staleness"], "name = staleness: is a part of more than one metric"),
        (["train/grad_nrom"], "no run writes a metric of this name\n    -> Did you mean train/grad_norm?"),
        (["qqqqqq"], "`miles metrics list` lists them"),
        ([""], 'name = "": no run writes a metric of this name'),
        (["ess", "runs/gone"], "there is no such folder"),
        (["ess", "."], "is no run folder"),
        (["ess", "--format", "toml"], "format = toml (--format): is not one of plain, json"),
    ],
)
def test_what_cannot_be_explained(home: Path, words: list[str], why: str) -> None:
    assert why in miles("metrics", "explain", *words, code=2)


def test_tab_offers_names_then_runs(home: Path) -> None:
    assert tab("metrics") == ["list", "explain"]
    assert tab("metrics explain", "train/ent") == ["train/entropy"]
    assert tab("metrics explain train/ess") == tab("metrics list") == [RUN]
