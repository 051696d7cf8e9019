"""A tracker whose package is not there is refused before anything starts, for people and for plans of other machines."""

import importlib.util

import pytest

from miles.config.tracker_checks import PACKAGES

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("name", "package"), PACKAGES.items())
def test_a_package_that_is_missing_is_named(bench, monkeypatch, name, package):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda asked, *more: None if asked == package else real(asked, *more))
    (problem,) = bench.examine("train", {name: "true"}).problems
    flag = f"--{name.replace('_', '-')}"
    assert str(problem) == (
        f"{name} = true ({flag}): the package {package} is not installed. `pip install {package}`, or leave {flag} out"
    )


@pytest.mark.parametrize("name", ["wandb_key", "wandb_mode", "tracking_project"])
def test_what_belongs_to_a_tracker_has_no_effect_without_it(bench, name):
    (problem,) = bench.examine("train", {name: "offline"}).problems
    assert (problem.option, problem.why.startswith("has no effect while use_wandb is not set")) == (name, True)
