"""The layers under one another: defaults < preset < files in order < environment < flags.

gather     every value given, per option, the one that counts first
variants   which schedule and placement the selectors choose
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from miles.config.commands import COMMANDS
from miles.config.environment import read_environment
from miles.config.files import TomlFile, read_toml, unknown_words
from miles.config.options.base import OptionSet
from miles.config.presets import preset_file, preset_names
from miles.config.reading import UnreadableError, read_value, shown, shown_unknown
from miles.config.registry import find_option, option_table, selector_of, variants_of
from miles.config.sources import FileSource, FlagValue, Given, Origin, OriginKind, Sources
from miles.errors import ConfigError, Problem

COMMAND_LINE = "command line"  # origin of what is no option
Chain = tuple[Given, ...]


@dataclass(frozen=True, slots=True)
class Layers:
    """Every value given, and the variants chosen by them.

    chains: option name → all that was given for it, the one that counts first.
    variants: section → the option set it holds.
    incomplete: a preset or file could not be read, so that a value may be missing.
    """

    command: str
    chains: Mapping[str, Chain]
    variants: Mapping[str, type[OptionSet]]
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]
    incomplete: bool

    def raise_problems(self) -> None:
        """Refuse what could not be read.

        Raises:
            ConfigError: with every problem of the layers.
        """
        if self.problems:
            raise ConfigError(list(self.problems))


def gather(command: str, sources: Sources) -> Layers:
    """All layers of a command, its variants chosen; names that nobody has are among the problems."""
    files, problems = _read_files(sources)
    incomplete = bool(problems)
    problems += [problem for file in files for problem in file.problems]
    variables = read_environment(command, sources.environ, sources.cwd)
    flags, unknown_flags = _read_flags(command, sources)
    upper = [variables.given, flags]

    general = [layer for file in files for layer in _layers_of(file, (command,))]
    variants, unreadable = choose_variants(command, _stack([*general, *upper]))
    selectors = [selector for chosen in variants.values() if (selector := selector_of(chosen))]
    tables = (command, *(f"{command}.{selector}" for selector in selectors))
    chains = _stack([layer for file in files for layer in _layers_of(file, tables)] + upper)
    return Layers(
        command,
        chains,
        variants,
        (*problems, *variables.problems, *unknown_flags, *unreadable),
        variables.warnings,
        incomplete,
    )


def command_named(sources: Sources) -> str | None:
    """The command that the topmost file with tables of one command alone is about; None where no file says."""
    files, _ = _read_files(sources)
    for file in reversed(files):
        commands = {table.partition(".")[0].replace("_", "-") for table, given in file.tables.items() if table and given}
        if len(commands) == 1:
            return commands.pop()
    return None


def choose_variants(command: str, chains: Mapping[str, Chain]) -> tuple[dict[str, type[OptionSet]], list[Problem]]:
    """The option set of every section: the one whose switch is on, else the default."""
    chosen: dict[str, type[OptionSet]] = {}
    problems: list[Problem] = []
    for section in COMMANDS[command].model_fields:
        default, *others = variants_of(command, section)
        chosen[section] = default
        for other in others:
            selector = selector_of(other)
            if selector is None or selector not in chains:
                continue
            given = chains[selector][0]
            try:
                if read_value(option_table()[selector], given.raw, given.folder):
                    chosen[section] = other
            except UnreadableError as error:
                problems.append(
                    Problem(selector, shown(option_table()[selector], given.raw), str(given.origin), error.why, error.remedy)
                )
    return chosen, problems


def _read_files(sources: Sources) -> tuple[list[TomlFile], list[Problem]]:
    files: list[TomlFile] = []
    problems: list[Problem] = []
    wanted: list[tuple[FileSource, str, OriginKind, Path]] = []
    if sources.preset is not None:
        if sources.preset in preset_names():
            path = preset_file(sources.preset)
            wanted.append((FileSource(path, "--preset"), f"preset {sources.preset}", OriginKind.PRESET, path.parent))
        else:
            near = difflib.get_close_matches(sources.preset, preset_names(), n=1, cutoff=0.5)
            remedy = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(preset_names())}"
            problems.append(Problem("preset", sources.preset, "--preset", "there is no such preset", remedy))
    wanted += [(file, str(file.path), OriginKind.FILE, sources.cwd) for file in sources.file_sources()]
    for file, label, kind, folder in wanted:
        try:
            files.append(read_toml(sources.cwd / file.path, label, kind, folder, file.named_by))
        except ConfigError as error:
            problems += error.problems
    return files, problems


def _layers_of(file: TomlFile, tables: Sequence[str]) -> list[Chain]:
    """What a file gives at its top and in the tables that count, the most general first."""
    return [file.tables.get(table.replace("-", "_"), ()) for table in ("", *tables)]


def _read_flags(command: str, sources: Sources) -> tuple[Chain, list[Problem]]:
    given: list[Given] = []
    problems: list[Problem] = []
    for name, flag in sources.flags.items():
        option = find_option(name)
        if option is None:
            value = "" if isinstance(flag.value, bool) else shown_unknown(flag.text, flag.value)
            problems.append(Problem(flag.text, value, COMMAND_LINE, *unknown_words(flag.text, command)))
        else:
            given += [_given_by_flag(option.name, one, sources.cwd) for one in (*flag.earlier, flag)]
    return tuple(given), problems


def _given_by_flag(name: str, flag: FlagValue, cwd: Path) -> Given:
    return Given(name, flag.value, Origin(OriginKind.FLAG, flag.text), cwd)


def _stack(layers: Sequence[Chain]) -> dict[str, Chain]:
    chains: dict[str, Chain] = {}
    for layer in layers:
        for given in layer:
            chains[given.name] = (given, *chains.get(given.name, ()))
    return chains
