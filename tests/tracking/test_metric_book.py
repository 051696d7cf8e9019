"""Every number that a run writes is in the book, and the book speaks only of what there is."""

import ast
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import miles
from miles.config.registry import find_option, option_table
from miles.policy.loss_spec import LossSpec
from miles.policy.step_metrics import NAMES, token_means
from miles.tracking.metric_book import BY_AGE, OF_AN_AGE, PARTS, entry_behind, find_metric, holding, metric_book, nearest_metric

pytestmark = pytest.mark.unit
FAMILIES = ("rollout", "ledger", "train", "perf", "eval")
KEY = re.compile(rf"(?:{'|'.join(FAMILIES)})/[\w<>/*-]+")
PREFIXES = {"train/staleness_*", "rollout/rejected/staleness", "rollout/rejected/response_len", "rollout/kept/response_len",
            "rollout/fully_async/staleness"}  # fmt: skip


def literals() -> set[str]:
    """Texts in the source that are metrics, what is filled in later written as ``*``."""
    nodes = [node for path in Path(miles.__file__).parent.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    joined = [node.values for node in nodes if isinstance(node, ast.JoinedStr)]
    pieces = {id(part) for parts in joined for part in parts}
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in pieces}
    texts |= {"".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts) for parts in joined}
    return {text for text in texts if isinstance(text, str) and KEY.fullmatch(text) and not text.endswith("/")}


WRITTEN = sorted(literals() - PREFIXES)


@pytest.mark.parametrize("text", WRITTEN)
def test_what_the_source_writes_is_in_the_book(text):
    names = [re.sub(r"<\w+>", "*", name) for name in metric_book()]
    assert text in names or any(re.fullmatch(re.escape(text).replace(r"\*", "[^/]+"), name) for name in names), text


@pytest.mark.parametrize("name", [name for name in metric_book() if "/" in name])
def test_the_book_speaks_of_what_the_source_writes(name):
    plain = re.sub(r"<\w+>", "*", name)
    ways = [
        text for text in (*WRITTEN, *PREFIXES) if re.fullmatch(re.escape(text).replace(r"\*", ".+"), plain.removesuffix("/*"))
    ]
    assert plain in WRITTEN or ways, name


@pytest.mark.parametrize("entry", metric_book().values(), ids=lambda entry: entry.name)
def test_an_entry_names_only_what_there_is(entry):
    assert set(entry.options) <= set(option_table())
    assert all(find_metric(name) for name in entry.related)
    for flag in re.findall(r"(--[a-z-]+[a-z])", " ".join((entry.about, entry.expect, *entry.causes))):
        assert find_option(flag), flag
    assert entry.about.endswith(".")


@given(st.sampled_from(list(metric_book())), st.integers(0, 99))
def test_a_filled_name_is_the_entry_and_says_its_parts(name, number):
    samples = {"dataset": f"set{number}", "lag": str(number), "tokens": str(number), "reason": "stale", "quarter": "0-25"}
    assert set(samples) == set(PARTS)
    key = re.sub(r"<(\w+)>", lambda part: samples[part[1]], name)
    entry = find_metric(key)
    assert entry is not None
    assert (entry.name, entry_behind(key)) == (key, metric_book()[name])
    assert not re.search(r"<\w+>", entry.about)


@given(st.integers(0, 99))
def test_tokens_of_one_age_are_measured_like_all(age):
    entry = find_metric(f"train/staleness_{age}/ess")
    assert entry is not None
    assert entry.about.startswith(metric_book()["train/ess"].about)
    assert f"age in versions is {age}" in entry.about


def test_what_is_measured_by_age_is_what_a_step_measures_by_age():
    sums = torch.ones(len(NAMES), dtype=torch.float64)
    assert {key for name in ("tis", "icepop") for key in token_means("train", sums, LossSpec(name))} == BY_AGE


@pytest.mark.parametrize(
    "key",
    ["train/nonsense", "rollout/dropped/", "train/staleness_x/ess", "eval", "", "train/staleness_1/no", "train/staleness_1/lr"],
)
def test_what_no_run_writes_is_not_found(key):
    assert find_metric(key) is None
    assert OF_AN_AGE.fullmatch(key) is None or entry_behind(key) is None


def test_a_part_of_a_name_leads_to_it():
    assert holding("ess") == ["train/ess"]
    assert holding("logprob_abs") == ["train/train_rollout_logprob_abs_diff"]
    assert len(holding("staleness")) > 3
    assert (holding("grad_nrom"), nearest_metric("train/grad_nrom")) == ([], "train/grad_norm")
    assert (holding("qqqqqq"), nearest_metric("qqqqqq")) == ([], None)
