"""Trackers besides metrics.jsonl are optional packages: refused before the start where one is asked for and not installed."""

import importlib.util
from collections.abc import Iterator

from miles.config.checks import Check, Find
from miles.config.registry import option_table
from miles.config.view import View
from miles.errors import Problem

PACKAGES = {"use_tensorboard": "tensorboard", "use_wandb": "wandb", "use_trackio": "trackio"}


def is_installed(name: str, package: str) -> Find:
    """A check that the package of a switch is there; it is not imported."""

    def find(view: View) -> Iterator[Problem]:
        if view[name] and importlib.util.find_spec(package) is None:
            flag = option_table()[name].flag
            yield view.problem(name, f"the package {package} is not installed", f"`pip install {package}`, or leave {flag} out")

    return find


TRACKER_CHECKS = tuple(Check(is_installed(name, package), (name,)) for name, package in PACKAGES.items())
