"""A configuration for programs to read."""

import json
from typing import Any

from miles.config.resolution import Examination, Row
from miles.errors import Problem


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
    return json.dumps(content, indent=2, ensure_ascii=False)


def _row(row: Row) -> dict[str, Any]:
    chain = [{"origin": str(item.origin), "value": item.value} for item in row.chain]
    extra = {"arithmetic": row.arithmetic} if row.derived else {"chain": chain}
    return {"value": row.value, "panel": row.panel, "derived": row.derived, **extra, **({"note": row.note} if row.note else {})}
