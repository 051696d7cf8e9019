"""The book of metrics: what every number in ``metrics.jsonl`` is, what it should be, and what it means when it is not.

The entries stand in ``metrics.toml``. A name may have parts that vary (``rollout/dropped/<reason>``); metrics of the tokens of
one age (``train/staleness_3/ess``) are those of all tokens, and need no entries of their own.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

PARTS = {"dataset": r"[^/]+", "lag": r"\d+", "tokens": r"\d+", "reason": r"[a-z_]+", "quarter": r"\d+-\d+"}
OF_AN_AGE = re.compile(r"train/staleness_(\d+|<lag>)/(.+)")
BY_AGE = frozenset(
    f"train/{name}"
    for name in (
        "ppo_kl", "pg_clipfrac", "train_rollout_logprob_abs_diff", "train_rollout_kl", "ess", "importance_ratio",
        "tis_clipfrac", "icepop_maskfrac",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MetricEntry:
    """One metric.

    unit: what it is counted in; ``share`` is from 0 to 1; empty for a number that is counted in nothing.
    expect: what it is in a run that goes well; empty where that cannot be said.
    related: metrics to look at beside it. options: those that decide about it.
    causes: what it can mean when it is not as it should be, the likeliest first.
    """

    name: str
    unit: str
    about: str
    expect: str = ""
    related: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()


@cache
def metric_book() -> Mapping[str, MetricEntry]:
    """All entries by name, in the order of the book."""
    text = files("miles.tracking").joinpath("metrics.toml").read_text()
    return {entry.name: entry for entry in map(_entry, tomllib.loads(text)["metric"])}


def find_metric(key: str) -> MetricEntry | None:
    """The entry of a key of ``metrics.jsonl``, under that key and with its parts filled in; None where no run writes it."""
    base = entry_behind(key)
    if base is None:
        return None
    if age := OF_AN_AGE.fullmatch(key):
        return replace(base, name=key, about=f"{base.about} Here of the tokens alone whose age in versions is {age[1]}.")
    about = base.about
    if found := _pattern(base.name).fullmatch(key):
        for name, text in found.groupdict().items():
            about = about.replace(f"<{name}>", text)
    return replace(base, name=key, about=about)


def entry_behind(key: str) -> MetricEntry | None:
    """The entry of the book that speaks of a key."""
    if age := OF_AN_AGE.fullmatch(key):
        return metric_book()[f"train/{age[2]}"] if f"train/{age[2]}" in BY_AGE else None
    matching = (entry for entry in metric_book().values() if _pattern(entry.name).fullmatch(key))
    return metric_book().get(key) or next(matching, None)


def holding(word: str) -> list[str]:
    """Names whose end is the word, or else those that hold it anywhere."""
    ending = [name for name in metric_book() if name.endswith(f"/{word}")]
    return ending or [name for name in metric_book() if word and word in name]


def nearest_metric(word: str) -> str | None:
    """The name most like the one written; None where none is near."""
    return next(iter(difflib.get_close_matches(word, metric_book(), n=1, cutoff=0.75)), None)


@cache
def _pattern(name: str) -> re.Pattern[str]:
    pieces = re.split(r"<(\w+)>", name)
    return re.compile(
        "".join(f"(?P<{piece}>{PARTS[piece]})" if place % 2 else re.escape(piece) for place, piece in enumerate(pieces))
    )


def _entry(raw: Mapping[str, Any]) -> MetricEntry:
    lists = {name: tuple(raw.get(name, ())) for name in ("related", "options", "causes")}
    return MetricEntry(**{**raw, **lists})
