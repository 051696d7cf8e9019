"""A configuration as data: what ``--format json`` prints, and what a run folder keeps as ``config.json``.

``config.toml`` runs a configuration again; ``config.json`` tells what it was, each value with its whole chain, and needs
neither the model nor the prompts to be read again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miles.config.derived import Derived
from miles.config.resolution import OriginOf, Resolution, Row
from miles.config.sources import Origin, OriginKind
from miles.errors import ConfigError, Problem

RECORD_FILE = "config.json"


@dataclass(frozen=True, slots=True)
class Record:
    """What a run used.

    command: ``train`` or ``train-async``.
    schedule, staleness_bound: as in ``Derived``.
    """

    command: str
    schedule: str
    staleness_bound: int
    rows: tuple[Row, ...]


def to_data(command: str, derived: Derived | None, rows: Sequence[Row], warnings: Sequence[str]) -> dict[str, Any]:
    """Command, schedule, one entry for every value with its chain, and warnings; secrets are masked."""
    return {
        "command": command,
        "schedule": derived.schedule if derived else None,
        "staleness_bound": derived.staleness_bound if derived else None,
        "values": {row.option: _row_data(row) for row in rows},
        "warnings": list(warnings),
    }


def record_text(resolution: Resolution[Any]) -> str:
    """The text of a run folder's ``config.json``."""
    data = to_data(resolution.command, resolution.derived, resolution.rows, resolution.warnings)
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def is_run_folder(path: Path) -> bool:
    """Whether a run has recorded its configuration there."""
    return (path / RECORD_FILE).is_file() and (path / "config.toml").is_file()


def read_record(folder: Path) -> Record:
    """What the run in a folder used.

    Raises:
        ConfigError: there is no record, or it cannot be read.
    """
    path = folder / RECORD_FILE
    try:
        data = json.loads(path.read_bytes())
        rows = tuple(_row(name, entry) for name, entry in data["values"].items())
        return Record(data["command"], data["schedule"], data["staleness_bound"], rows)
    except FileNotFoundError as error:
        if not folder.exists():
            remedy = "Name train or train-async, or the folder of a run"
            raise _refused(folder, "there is no such command or folder", remedy) from error
        why = f"is no run folder: it has no {RECORD_FILE}"
        raise _refused(folder, why, "Give the folder of a run, as in `runs/…`") from error
    except NotADirectoryError as error:
        remedy = f"Run: miles config show --config {folder}"
        raise _refused(folder, "is a file, and a run folder or a command is due", remedy) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"has a {RECORD_FILE} that cannot be read: {error}"
        remedy = f"Run: miles config show train --config {folder / 'config.toml'}"
        raise _refused(folder, why, remedy) from error


def recorded_toml(folder: Path) -> str:
    """The text of a run's ``config.toml``.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return (folder / "config.toml").read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = f"has a config.toml that cannot be read: {error}"
        raise _refused(folder, why, f"Run: miles config show {folder}") from error


def _refused(folder: Path, why: str, remedy: str) -> ConfigError:
    return ConfigError([Problem("run folder", str(folder), "", why, remedy)])


def _row_data(row: Row) -> dict[str, Any]:
    chain = [
        {"origin": str(item.origin), "value": item.value, "layer": str(item.origin.kind), "table": item.origin.table}
        for item in row.chain
    ]
    told = {"arithmetic": row.arithmetic, "note": row.note}
    head = {"value": row.value, "section": row.section, "panel": row.panel, "derived": row.derived, "origin": row.origin}
    return {**head, "chain": chain, **{name: text for name, text in told.items() if text}}


def _row(name: str, entry: Mapping[str, Any]) -> Row:
    return Row(
        entry["section"],
        entry["panel"],
        name,
        entry["value"],
        tuple(_link(link) for link in entry["chain"]),
        entry["derived"],
        entry.get("arithmetic", ""),
        entry.get("note", ""),
    )


def _link(link: Mapping[str, Any]) -> OriginOf:
    table = link["table"]
    text = link["origin"].removesuffix(f" [{table}]") if table else link["origin"]
    return OriginOf(Origin(OriginKind(link["layer"]), text, table), link["value"])
