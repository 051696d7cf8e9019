"""A configuration for programs to read."""

import json
from typing import Any

from miles.config.resolution import Examination, Resolution, Row
from miles.config.toml_out import config_toml
from miles.errors import ConfigError, Problem


def as_json(found: Examination, needed: list[Problem]) -> str:
    """One object: command, schedule, a row for every value with its chain, warnings, and what is still needed."""
    content = {
        "command": found.command,
        "schedule": found.derived.schedule if found.derived else None,
        "staleness_bound": found.derived.staleness_bound if found.derived else None,
        "values": {row.option: _row(row) for row in found.rows},
        "warnings": list(found.warnings),
        "needed": [{"option": problem.option, "why": problem.why, "remedy": problem.remedy} for problem in needed],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def as_toml(found: Examination) -> str:
    """A file for ``--config`` that gives the same configuration again, origins as comments.

    Raises:
        ConfigError: something is still needed.
    """
    if found.config is None or found.derived is None:
        raise ConfigError(list(found.problems))
    return config_toml(Resolution(found.command, found.config, found.derived, found.rows, found.warnings))


def _row(row: Row) -> dict[str, Any]:
    chain = [{"origin": str(item.origin), "value": item.value} for item in row.chain]
    extra = {"arithmetic": row.arithmetic} if row.derived else {"chain": chain}
    return {"value": row.value, "panel": row.panel, "derived": row.derived, **extra, **({"note": row.note} if row.note else {})}
