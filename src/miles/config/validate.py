"""Files looked at on their own, before anybody runs them: everything wrong with them, each at its line."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from miles.config.commands import COMMANDS
from miles.config.layers import command_named
from miles.config.resolve import examine
from miles.config.sources import Sources
from miles.errors import Problem

_ORIGIN = re.compile(r"(?P<file>.+):(?P<line>\d+)(?: \[[^\]]*\])?(?:, written .+)?")


class Located(NamedTuple):
    """A problem and the line of the file that holds it; line 1 where the whole file is meant."""

    file: str
    line: int
    problem: Problem


def file_problems(file: Path, cwd: Path, *, paths_too: bool) -> list[Located]:
    """What is wrong with a file; that it leaves options to others is not.

    A file whose tables name a command is judged for it, another one for the command that it suits best.

    Args:
        file: as the user wrote it.
        cwd: what it is relative to.
        paths_too: also look for the files and folders that it names.
    """
    sources = Sources(config_files=(file,), cwd=cwd)
    named = command_named(sources)
    by_command = [_problems(command, sources, paths_too=paths_too) for command in ([named] if named else COMMANDS)]
    located = [_located(str(file), problem) for problem in min(by_command, key=len)]
    return sorted(located, key=lambda found: found.line)


def _problems(command: str, sources: Sources, *, paths_too: bool) -> Sequence[Problem]:
    return [problem for problem in examine(command, sources, paths_too=paths_too).problems if not problem.is_missing]


def _located(file: str, problem: Problem) -> Located:
    place = _ORIGIN.fullmatch(problem.origin)
    return Located(file, int(place["line"]) if place and place["file"] == file else 1, problem)
