"""The user's own code by its dotted path: imported before anything starts, so that a wrong path fails at once.

A path is ``package.module:name``, ``package.module.name``, or the name of an entry point in the group
``miles.<kind>`` (``miles.reward``) of an installed package.
"""

import difflib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from miles.config.registry import option_table
from miles.errors import ConfigError, Problem

LIKENESS = 0.7  # with less, one of the library's hundreds of modules is always near


def load_dotted(path: str, option: str = "dotted path", origin: str = "", kind: str = "") -> Any:
    """The object a path names.

    Modules beside the working directory are found, as with ``python -m``.

    Args:
        path: what the user gave.
        option: the option that holds it, and
        origin: where its value came from; both for the error.
        kind: group of entry points to look in (``reward`` for ``miles.reward``) for a path of one word.

    Raises:
        ConfigError: the module or the name does not exist (the nearest one is named), or the import fails.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    place = _Place(path, option, origin)
    if ":" not in path and "." not in path:
        return _load_entry_point(place, kind)
    module_name, _, attributes = path.partition(":") if ":" in path else path.rpartition(".")
    if not module_name or not attributes:
        raise place.error("names no object", f"Give {place.flag} package.module:name")
    return _walk(place, _import(place, module_name), attributes)


class _Place:
    """A path, and where it came from."""

    def __init__(self, path: str, option: str, origin: str) -> None:
        self.path, self.option, self.origin = path, option, origin
        known = option_table().get(option)
        self.flag = known.flag if known else option

    def error(self, why: str, remedy: str) -> ConfigError:
        return ConfigError([Problem(self.option, self.path, self.origin, why, remedy)])

    def near(self, name: str, names: Iterable[str], label: str = "") -> str:
        found = difflib.get_close_matches(name, list(names), n=1, cutoff=LIKENESS)
        return f"Did you mean {label}{found[0]}?" if found else f"Give {self.flag} package.module:name"


def _load_entry_point(place: _Place, kind: str) -> Any:
    found = {point.name: point for point in entry_points(group=f"miles.{kind}")} if kind else {}
    if place.path not in found:
        where = f" among the entry points of miles.{kind}" if kind else ""
        raise place.error(f"is no dotted path, and there is no such name{where}", place.near(place.path, found))
    try:
        return found[place.path].load()
    except Exception as error:
        raise place.error(f"cannot be loaded: {type(error).__name__}: {error}", "Correct the package") from error


def _import(place: _Place, name: str) -> ModuleType:
    parent = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        part = ".".join(parts[:end])
        try:
            missing = importlib.util.find_spec(part) is None
        except (ImportError, ValueError, AttributeError):
            missing = True
        if missing:
            folder = f"{parent.__name__}." if parent else ""
            remedy = place.near(parts[end - 1], _modules_in(parent), folder)
            raise place.error(f"there is no module {part}", remedy)
        try:
            parent = importlib.import_module(part)
        except (Exception, SystemExit) as error:  # the user's module may raise anything
            why = f"importing {part} fails: {type(error).__name__}: {error}"
            raise place.error(why, f"Correct {part}; `python -c 'import {part}'` shows the whole error") from error
    if parent is None:
        raise place.error("names no module", f"Give {place.flag} package.module:name")
    return parent


def _modules_in(package: ModuleType | None) -> list[str]:
    paths = list(getattr(package, "__path__", [])) if package else [path or "." for path in sys.path if "zip" not in path]
    return [module.name for module in pkgutil.iter_modules(paths)]


def _walk(place: _Place, module: ModuleType, attributes: str) -> Any:
    found: Any = module
    for name in attributes.split("."):
        if not hasattr(found, name):
            public = [known for known in dir(found) if not known.startswith("_")]
            label = f"{module.__name__}:" if found is module else f"{attributes.rpartition('.')[0]}."
            raise place.error(f"{getattr(found, '__name__', found)} has no {name}", place.near(name, public, label))
        found = getattr(found, name)
    return found
