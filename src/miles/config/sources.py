"""Where values come from: the sources a command is given, and the origin that every value keeps."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

CONFIG_VARIABLE = "MILES_CONFIG"
COMMAND_FLAGS = ("preset", "config", "dry_run", "json", "gpu_memory_gib", "help_all", "changed", "format")  # no options of a run
PROJECT_FILE = "miles.toml"


class OriginKind(StrEnum):
    """The layers, lowest first."""

    DEFAULT = "default"
    PRESET = "preset"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from.

    text: ``default``, ``preset reverse``, ``run.toml:12``, ``$MILES_LR`` or ``--lr``.
    table: the table of a file that it stood in (``train-async.fully-async``); empty at the top of the file.
    spelling: the key as it was written, where that is not the option's name (``rollout-temperature``).
    """

    kind: OriginKind
    text: str
    table: str = ""
    spelling: str = ""

    def __str__(self) -> str:
        place = f"{self.text} [{self.table}]" if self.table else self.text
        return f"{place}, written {self.spelling}" if self.spelling else place


class FlagValue(NamedTuple):
    """A flag as it was given.

    value: as Typer read it: text, number, bool, a sequence of values, or a sequence of (name, value) pairs.
    text: the flag as typed (``--lr``, ``--no-rollout-shuffle``).
    earlier: the same option earlier on the command line, in order; the last one counts.
    """

    value: Any
    text: str
    earlier: "tuple[FlagValue, ...]" = ()


@dataclass(frozen=True, slots=True)
class Given:
    """A value as a source gave it.

    folder: what a relative path is relative to.
    items: of a table its keys, each with its own origin.
    """

    name: str
    raw: Any
    origin: Origin
    folder: Path
    items: Mapping[str, str] = field(default_factory=dict)


class FileSource(NamedTuple):
    """A configuration file, and who names it: ``working directory``, ``$MILES_CONFIG`` or ``--config``."""

    path: Path
    named_by: str


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything a configuration is made from; nothing else is looked at.

    flags: option name → value and flag as typed, in the order of the command line. May hold names that the command
        does not have or that nobody has; the resolver says where they belong.
    config_files: as given to ``--config``, in order; a later file wins.
    gpu_memory_gib: plan for GPUs of this size, whatever the machine has.
    project_file: the ``miles.toml`` of the working directory, below the files that ``$MILES_CONFIG`` names and those.
    preset: name of a preset.
    environ: the environment; only ``MILES_…`` is read.
    cwd: what relative paths in flags, files and variables are relative to.
    """

    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    config_files: tuple[Path, ...] = ()
    preset: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = field(default_factory=Path.cwd)
    project_file: Path | None = None
    gpu_memory_gib: float | None = None

    def file_sources(self) -> tuple["FileSource", ...]:
        """Every configuration file, the lowest first: project file, ``$MILES_CONFIG``, ``--config``."""
        project = [FileSource(self.project_file, "working directory")] if self.project_file is not None else []
        named = [Path(name) for name in self.environ.get(CONFIG_VARIABLE, "").split(os.pathsep) if name]
        standing = [FileSource(file, f"${CONFIG_VARIABLE}") for file in named]
        return (*project, *standing, *(FileSource(file, "--config") for file in self.config_files))
