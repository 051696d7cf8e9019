"""``docs/metrics.md``: every number of ``metrics.jsonl``."""

from collections.abc import Iterator
from pathlib import Path

from miles.tracking.metric_book import MetricEntry, metric_book
from miles_cli.wording import table_cell

PAGE = Path("docs/metrics.md")
INTRODUCTION = """\
# Metrics

Written by `python -m miles_cli.references` from `src/miles/tracking/metrics.toml`; do not edit by hand.

A run writes one flat JSON object a line to `metrics.jsonl`: one for each step, one for each evaluation. `miles metrics explain
NAME RUN` shows what a number is, its course in a run, the options that decided it, and what it can mean when it is not as it
should be; `miles metrics list RUN` shows the last value of each. `<…>` stands for a part that varies. Where a batch holds tokens
older than the policy, `train/staleness_<lag>/…` is the same metric of the tokens of that age alone.

μ is the engine's log-prob when it sampled, π_old the policy's before the step, π the policy's. Trained tokens
are those in the loss that had a forward pass.
"""
HEADINGS = {
    "rollout": "Rollouts",
    "ledger": "The ledger",
    "train": "The policy",
    "perf": "Time",
    "eval": "Evaluation",
    "": "Every row",
}


def page() -> str:
    """The text of the page."""
    by_heading: dict[str, list[MetricEntry]] = {heading: [] for heading in HEADINGS}
    for entry in metric_book().values():
        by_heading[entry.name.rpartition("/")[0].split("/")[0]].append(entry)
    return "\n".join([INTRODUCTION, *(line for key, entries in by_heading.items() for line in _section(HEADINGS[key], entries))])


def _section(heading: str, entries: list[MetricEntry]) -> Iterator[str]:
    yield from (f"## {heading}", "", "| metric | unit | meaning | expect |", "|---|---|---|---|")
    yield from (
        f"| `{entry.name}` | {entry.unit} | {table_cell(entry.about)} | {table_cell(entry.expect)} |" for entry in entries
    )
    yield ""
    for entry in entries:
        if entry.causes:
            yield from (
                f"**`{entry.name}`** is not as it should be:",
                "",
                *(f"* {table_cell(cause)}" for cause in entry.causes),
                "",
            )
