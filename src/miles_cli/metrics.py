"""``miles metrics list`` and ``explain``: the book of metrics, held beside the numbers of a run."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from miles.config.resolution import Row
from miles.errors import ConfigError, Problem
from miles.tracking.metric_book import MetricEntry, entry_behind, find_metric, holding, metric_book, nearest_metric
from miles.tracking.metrics_file import FILE_NAME, read_rows
from miles.tracking.past_runs import PastRun, read_run
from miles.types import Metrics
from miles_cli.beside_options import Fact
from miles_cli.progress import sparkline
from miles_cli.showing import console_here, print_pairs, say
from miles_cli.source_options import check_format
from miles_cli.summary import near

CURVE_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Numbers:
    """A run and all of its rows."""

    run: PastRun
    rows: Sequence[Metrics]

    def course(self, key: str) -> list[float | None]:
        """The values of a metric in the order of the rows; None where it was no number."""
        return [row[key] for row in self.rows if key in row]

    def last(self, key: str) -> str:
        """Its last value as text; empty where there is none."""
        return "".join(map(number, self.course(key)[-1:]))


def list_command(folder: Path | None, format: str) -> None:
    """Print every metric, or those of a run.

    Raises:
        ConfigError: there is no run in the folder.
        CheckpointError: its metrics are damaged.
    """
    check_format(format, ("plain", "json"))
    numbers = None if folder is None else numbers_of(folder)
    entries = list(metric_book().values()) if numbers is None else written(numbers)
    values = {entry.name: numbers.last(entry.name) for entry in entries} if numbers else {}
    if format == "json":
        _write_json([_entry_data(entry) | ({"last": values[entry.name]} if values else {}) for entry in entries])
        return
    print_pairs(console_here(), [(entry.name, _line(entry, values.get(entry.name))) for entry in entries])


def explain_command(name: str, folder: Path | None, format: str) -> None:
    """Print everything about one metric.

    Raises:
        ConfigError: no metric, or more than one, is meant; there is no run in the folder.
        CheckpointError: the run's metrics are damaged.
    """
    check_format(format, ("plain", "json"))
    entry = meant_by(name)
    numbers = None if folder is None else numbers_of(folder)
    if format == "json":
        _write_json(_entry_data(entry) | ({} if numbers is None else {"run": _run_data(entry, numbers)}))
        return
    console = console_here()
    say(console, [f"{entry.name}: {entry.about}", ""])
    print_pairs(console, [(f"  {label}", text) for label, text in facts_of(entry, numbers)])


def meant_by(name: str) -> MetricEntry:
    """The metric that a key, or a part of one, names.

    Raises:
        ConfigError: none, or more than one.
    """
    if entry := find_metric(name):
        return entry
    found, near_name = holding(name), nearest_metric(name)
    if len(found) == 1:
        return metric_book()[found[0]]
    if found:
        why, remedy = "is a part of more than one metric", f"Give one of: {', '.join(found)}"
    else:
        why = "no run writes a metric of this name"
        remedy = f"Did you mean {near_name}?" if near_name else "`miles metrics list` lists them"
    raise ConfigError([Problem("name", name or '""', "", why, remedy)])


def numbers_of(folder: Path) -> Numbers:
    """The numbers of the run in a folder.

    Raises:
        ConfigError: there is none.
        CheckpointError: its metrics are damaged.
    """
    if not folder.is_dir():
        raise ConfigError([Problem("run", str(folder), "", "there is no such folder", "`miles runs list` lists the runs")])
    return Numbers(read_run(folder), read_rows(folder / FILE_NAME))


def written(numbers: Numbers) -> list[MetricEntry]:
    """The metrics of a run in the order of the book; what a function of the user's returned has a name alone."""
    keys = dict.fromkeys(key for row in numbers.rows for key in row)
    order = {name: place for place, name in enumerate(metric_book())}

    def place(key: str) -> tuple[int, str]:
        behind = entry_behind(key)
        return order[behind.name] if behind else len(order), key

    return [find_metric(key) or MetricEntry(key, "", "a function of yours returned it") for key in sorted(keys, key=place)]


def facts_of(entry: MetricEntry, numbers: Numbers | None) -> Iterator[Fact]:
    """What there is to know, in order."""
    if entry.unit:
        yield "unit", entry.unit
    if entry.expect:
        yield "expect", entry.expect
    if numbers is not None:
        yield from _in_run(entry, numbers)
    else:
        yield from (("" if place else "beside it", name) for place, name in enumerate(entry.related))
        if entry.options:
            yield "decided by", ", ".join(f"--{name.replace('_', '-')}" for name in entry.options)
    for place, cause in enumerate(entry.causes, 1):
        yield "causes" if place == 1 else "", f"{place}. {cause}"


def _in_run(entry: MetricEntry, numbers: Numbers) -> Iterator[Fact]:
    course = numbers.course(entry.name)
    finite = [value for value in course if value is not None]
    where = near(numbers.run.path.absolute())
    if not course:
        yield "in the run", f"{where} has no such number"
    else:
        yield "in the run", f"{where}: {len(course)} rows, first {number(course[0])}, last {number(course[-1])}"
    if len(finite) < len(course):
        yield "", f"{len(course) - len(finite)} of them are null: NaN or infinite"
    if finite:
        yield "", f"lowest {min(finite):.6g}, highest {max(finite):.6g}, mean {sum(finite) / len(finite):.6g}"
        yield "course", sparkline(finite, CURVE_WIDTH)
    beside = [f"{name} = {value}" for name in entry.related if (value := numbers.last(name))]
    yield from (("" if place else "beside it", text) for place, text in enumerate(beside))
    used = [f"{row.option} = {row.value} ({row.origin})" for row in _deciding(entry, numbers)]
    yield from (("" if place else "decided by", text) for place, text in enumerate(used))


def number(value: float | None) -> str:
    """A value as text; null, as in the file, where it was NaN or infinite."""
    return "null" if value is None else f"{value:.6g}"


def _deciding(entry: MetricEntry, numbers: Numbers) -> list[Row]:
    return [row for name in entry.options for row in numbers.run.record.rows if row.option == name]


def _run_data(entry: MetricEntry, numbers: Numbers) -> dict[str, object]:
    return {
        "path": str(numbers.run.path),
        "values": numbers.course(entry.name),
        "related": {name: course[-1] for name in entry.related if (course := numbers.course(name))},
        "options": {row.option: {"value": row.value, "origin": row.origin} for row in _deciding(entry, numbers)},
    }


def _line(entry: MetricEntry, value: str | None) -> str:
    if value is None:
        return f"{entry.about} [{entry.unit}]" if entry.unit else entry.about
    return f"{value} {entry.unit}".rstrip() if entry.unit != "share" else value


def _entry_data(entry: MetricEntry) -> dict[str, object]:
    return {name: getattr(entry, name) for name in MetricEntry.__slots__}


def _write_json(content: object) -> None:
    console_here().file.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
