"""Sentences for values that an option set refuses, in place of the validator's own report."""

import difflib
from collections.abc import Mapping
from typing import Any

from miles.config.options.base import OptionSet
from miles.config.reading import BOUND_WORDS
from miles.config.registry import Option, selector_of
from miles.config.shapes import shape_of

_BOUNDS = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}


def refusal_words(option: Option, option_set: type[OptionSet], value: Any, error: Mapping[str, Any]) -> tuple[str, str]:
    """Why an option set does not take a value, and what to do; ``error`` is one entry of ``ValidationError.errors()``."""
    kind = str(error["type"])
    if kind in _BOUNDS:
        bound = _BOUNDS[kind]
        limit = error["ctx"][bound]
        return f"must be {BOUND_WORDS[bound].removeprefix('of ')} {limit:g}", f"Give {option.flag} {_what(option)}"
    if kind == "finite_number":
        return "is not a finite number", f"Give {option.flag} {_what(option)}"
    if kind == "literal_error":
        return _choice_words(option, option_set, value)
    return str(error["msg"]).lower().rstrip("."), f"Give {option.flag} {_what(option)}"


def _what(option: Option) -> str:
    noun = "whole number" if option.shape.scalar is int else "number" if option.shape.scalar is float else "value"
    article = "another " if noun == "value" else "a "
    bounds = " and ".join(f"{BOUND_WORDS[bound]} {limit:g}" for bound, limit in option.bounds)
    return f"{article}{noun} {bounds}".rstrip()


def _choice_words(option: Option, option_set: type[OptionSet], value: Any) -> tuple[str, str]:
    words = [str(word) for word in shape_of(option_set.model_fields[option.name].annotation).choices]
    listed = ", ".join(words)
    selector = selector_of(option_set)
    if value in option.choices and selector:
        flag = "--" + selector.replace("_", "-")
        remedy = f"Set {option.name} to {' or '.join(words)}{_old_variable(option)}, or leave {flag} out"
        return f"does not go with {flag}, which takes only {listed}", remedy
    near = difflib.get_close_matches(str(value), words, n=1)
    remedy = f"Did you mean {near[0]}?" if near else f"Set {option.name} to one of them"
    return f"is not one of {listed}" if len(words) > 1 else f"must be {listed}", remedy


def _old_variable(option: Option) -> str:
    return " ($MILES_EXPERIMENTAL_ROLLOUT_REFACTOR to 1)" if option.name == "rollout_api" else ""
