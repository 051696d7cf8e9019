"""A configuration for programs to read."""

import json
from collections.abc import Collection

from miles.config.records import to_data
from miles.config.resolution import Examination, Resolution
from miles.config.sources import Sources
from miles.config.toml_out import config_toml, lines_about
from miles.errors import ConfigError, Problem


def as_json(found: Examination, sources: Sources, needed: list[Problem], names: Collection[str]) -> str:
    """One object: command, schedule, files, an entry for every value named, warnings, and what is still needed."""
    rows = [row for row in found.rows if row.option in names]
    content = to_data(found.command, found.derived, rows, found.warnings)
    content["files"] = [{"path": str(file.path), "named_by": file.named_by} for file in sources.file_sources()]
    content["needed"] = [{"option": problem.option, "why": problem.why, "remedy": problem.remedy} for problem in needed]
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def as_toml(found: Examination, names: Collection[str]) -> str:
    """A file for ``--config`` with the options named; with all of them it gives the same configuration again.

    Raises:
        ConfigError: something is still needed.
    """
    if found.config is None or found.derived is None:
        raise ConfigError(list(found.problems))
    text = config_toml(Resolution(found.command, found.config, found.derived, found.rows, found.warnings))
    return lines_about(text, names)
