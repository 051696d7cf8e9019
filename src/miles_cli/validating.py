"""``miles config validate``: every problem of every file, for people, for programs, and for annotations on GitHub."""

import json
from pathlib import Path

from miles.config.validate import Located, file_problems
from miles_cli.showing import console_here
from miles_cli.source_options import check_format

VALIDATE_FORMATS = ("plain", "json", "github")


def validate(files: list[str], format: str, *, paths_too: bool) -> bool:
    """Print what is wrong; whether nothing is.

    Raises:
        ConfigError: there is no such format.
    """
    check_format(format, VALIDATE_FORMATS)
    cwd = Path.cwd()
    found = [located for file in files for located in file_problems(Path(file), cwd, paths_too=paths_too)]
    console = console_here()
    if format == "json":
        console.file.write(json.dumps([_data(located) for located in found], indent=2, ensure_ascii=False) + "\n")
        return not found
    lines = [_github(located) if format == "github" else plain_line(located) for located in found]
    if not found and format == "plain":
        lines = [f"{file}: nothing is wrong" for file in files]
    console.file.write("".join(f"{line}\n" for line in lines))
    return not found


def plain_line(located: Located) -> str:
    """``run.toml:3: lr = nan: is not a finite number. Give --lr a number above 0``."""
    problem = located.problem
    value = f" = {problem.value}" if problem.value and problem.option != "config" else ""
    return f"{located.file}:{located.line}: {problem.option}{value}: {problem.why}. {problem.remedy}"


def _github(located: Located) -> str:
    """A workflow command; https://docs.github.com/actions/reference/workflow-commands-for-github-actions."""
    problem = located.problem
    text = f"{problem.option}: {problem.why}. {problem.remedy}"
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    file = located.file.replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    return f"::error file={file},line={located.line},title=miles::{escaped}"


def _data(located: Located) -> dict[str, str | int]:
    problem = located.problem
    return {
        "file": located.file,
        "line": located.line,
        "option": problem.option,
        "value": problem.value,
        "why": problem.why,
        "remedy": problem.remedy,
    }
