"""Words that Tab offers beside options and choices: run folders, checkpoints, files, and names in the user's own code.

Everything is found by looking at file names and at the text of Python files; nothing of the user's is imported.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from miles.config.presets import preset_names
from miles.config.records import is_run_folder
from miles.config.registry import VARIABLE_PREFIX, all_options
from miles.config.server_arguments import OWNED, SERVERS, argument_list

RUNS = "runs"
CHECKPOINTS = "checkpoints/rollout-*"
FAILED = "failed/rollout-*"
Offer = tuple[str, str]


def run_folders(incomplete: str) -> Iterator[Offer]:
    """Folders of runs, the newest first: those under ``runs``, and those under the folder being typed."""
    places = dict.fromkeys([RUNS, *([folder_of(incomplete)] if folder_of(incomplete) else [])])
    found = [folder for place in places for folder in Path(place).glob("*") if is_run_folder(folder)]
    for folder in sorted(dict.fromkeys(found), key=lambda folder: folder.stat().st_mtime, reverse=True):
        yield str(folder), ""


def metric_names() -> Iterator[Offer]:
    """The names of all metrics."""
    from miles.tracking.metric_book import metric_book

    yield from ((entry.name, entry.about) for entry in metric_book().values())


def checkpoint_steps(run: str) -> Iterator[Offer]:
    """Rollouts after which a run has a whole checkpoint, the last first."""
    from miles.errors import CheckpointError
    from miles.tracking.past_runs import saved_steps

    try:
        found = [saved for saved in saved_steps(Path(run)) if saved.is_whole]
    except CheckpointError:  # no run: nothing to offer
        return
    for saved in reversed(found):
        yield str(saved.step), "latest" if saved.is_latest else ""


def failed_steps(incomplete: str) -> Iterator[Offer]:
    """What runs have kept of steps that failed, the last step first."""
    for run, _ in run_folders(incomplete):
        for folder in sorted(Path(run).glob(FAILED), reverse=True):
            yield str(folder), ""


def checkpoints(incomplete: str) -> Iterator[Offer]:
    """Checkpoints of the runs, the last step first."""
    for run, _ in run_folders(incomplete):
        for folder in sorted(Path(run).glob(CHECKPOINTS), reverse=True):
            yield str(folder), ""


def config_files(incomplete: str) -> Iterator[Offer]:
    """TOML files, and the folders on the way to more."""
    folder = Path(folder_of(incomplete) or ".")
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith(".") and not incomplete.rpartition("/")[2].startswith("."):
            continue
        text = f"{folder_of(incomplete)}{path.name}"
        if path.is_dir():
            yield f"{text}/", ""
        elif path.suffix == ".toml":
            yield text, ""


def configurations(incomplete: str) -> Iterator[Offer]:
    """What ``config diff`` compares: presets, run folders, files."""
    yield from ((name, "preset") for name in preset_names())
    yield from ((name, "run") for name, _ in run_folders(incomplete))
    yield from config_files(incomplete)


def option_keys(incomplete: str) -> Iterator[Offer]:
    """Every option in the spelling that was begun: file key, flag or variable; arguments of a server to those who begin one."""
    if incomplete.startswith(tuple(f"{server}." for server in SERVERS)):
        yield from argument_keys()
        return
    for option in all_options():
        if incomplete.startswith("-"):
            yield option.flag, option.help
        elif VARIABLE_PREFIX.startswith(incomplete[: len(VARIABLE_PREFIX)]) and incomplete:
            yield option.variable, option.help
        else:
            yield option.name, option.help


def dotted_paths(incomplete: str) -> Iterator[Offer]:
    """``package.`` and ``module:`` beside the working directory; after the colon, what the module defines."""
    module, colon, _ = incomplete.partition(":")
    if colon:
        yield from ((f"{module}:{name}", about) for name, about in _defined_in(module))
        return
    package = incomplete.rpartition(".")[0]
    folder = Path(*package.split(".")) if package else Path()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        name = f"{package}.{path.stem}" if package else path.stem
        if not path.stem.isidentifier():
            continue
        if path.suffix == ".py" and path.stem != "__init__":
            yield f"{name}:", ""
        elif path.is_dir() and any(path.glob("*.py")):
            yield f"{name}.", ""


def _defined_in(module: str) -> Iterator[Offer]:
    """Functions and classes of a module, with the first line of what they say about themselves."""
    path = Path(*module.split("."))
    file = next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
    if file is None:
        return
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # the user is in the middle of writing it; there is nothing to offer yet
        return
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield node.name, (ast.get_docstring(node) or "").partition("\n")[0]


def folder_of(incomplete: str) -> str:
    """``a/b`` → ``a/``; empty for a word without a slash."""
    return incomplete[: incomplete.rfind("/") + 1]


def argument_keys() -> Iterator[Offer]:
    """Every argument of a server as a key, with what it means."""
    for server in SERVERS:
        for name, argument in argument_list(server).arguments.items():
            yield f"{server}.{name}", argument.help


def server_argument_names(server: str) -> Iterator[Offer]:
    """Arguments of sglang's server or router that a user may give, each with its type."""
    known = argument_list(server)
    for name, argument in known.arguments.items():
        if name not in OWNED[server]:
            yield name, "|".join(argument.choices) or argument.kind
