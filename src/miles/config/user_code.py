"""The user's functions and classes, imported and held against what they will be called with; nothing is called."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from miles.config.dotted import load_dotted
from miles.config.registry import all_options
from miles.config.resolution import Resolution
from miles.config.view import View, view_of
from miles.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Call:
    """How an option's object is called: its positional arguments by name, and whether the call must be async.

    methods: what a class must have; a function that builds the object is not looked into.
    """

    arguments: tuple[str, ...]
    must_be_async: bool = False
    methods: tuple[str, ...] = ()


CALLS = {
    "custom_generate_function_path": Call(("engine", "prompt", "sampling", "rid"), must_be_async=True),
    "environment_path": Call(("prompt", "turns"), must_be_async=True),
    "dynamic_sampling_filter_path": Call(("group",)),
    "rollout_sample_filter_path": Call(("groups",)),
    "rollout_function_path": Call(("given",), methods=("__call__", "published", "pause", "resume", "close")),
    "custom_async_data_buffer_path": Call((), methods=("put", "take", "counts_by_version", "groups")),
    "data_source_path": Call(("config",), methods=("__next__", "state", "restore")),
    "custom_rm_path": Call(("sample", "prompt")),
    "custom_loss_function_path": Call(("tokens",)),
    "eval_function_path": Call(("given",), must_be_async=True),
    "eval_checkpoint_function_path": Call(("folder", "weight_version")),
}
FUNCTION_API = Call(("given", "rollout_id", "weight_version"))
KINDS = {
    "custom_generate_function_path": "generate",
    "environment_path": "environment",
    "dynamic_sampling_filter_path": "filter",
    "rollout_sample_filter_path": "sample_filter",
    "rollout_function_path": "rollout",
    "custom_async_data_buffer_path": "buffer",
    "data_source_path": "data_source",
    "custom_rm_path": "reward",
    "custom_loss_function_path": "loss",
    "eval_function_path": "evaluate",
    "eval_checkpoint_function_path": "evaluate_checkpoint",
}


@dataclass(frozen=True, slots=True)
class UserCode:
    """One object of the user's, found and fitting."""

    option: str
    path: str
    signature: str


def check_user_code(resolution: Resolution) -> tuple[UserCode, ...]:
    """Import every object that the configuration names.

    Raises:
        ConfigError: for all that cannot be imported or do not take what they are called with.
    """
    origins = {row.option: str(row.chain[0].origin) for row in resolution.rows if row.chain}
    found, problems = look_at_user_code(replace(view_of(resolution.command, resolution.config), origins=origins))
    if problems:
        raise ConfigError(problems)
    return found


def look_at_user_code(view: View) -> tuple[tuple[UserCode, ...], list[Problem]]:
    """Import every object that is named: those that fit, and what is wrong with the others."""
    found: list[UserCode] = []
    problems: list[Problem] = []
    for option in all_options():
        path = view.values.get(option.name) if option.meta.kind == "dotted" else None
        if path is None:
            continue
        try:
            found.append(_check(option.name, path, view.origins.get(option.name, ""), _call(option.name, view)))
        except ConfigError as error:
            problems += error.problems
    return tuple(found), problems


def _call(option: str, view: View) -> Call:
    is_function = view.values.get("rollout_api") == "function"
    return FUNCTION_API if option == "rollout_function_path" and is_function else CALLS[option]


def _check(option: str, path: str, origin: str, call: Call) -> UserCode:
    loaded = load_dotted(path, option, origin, KINDS[option])
    wanted = f"({', '.join(call.arguments)})"
    if not callable(loaded):
        raise _refused(
            option,
            path,
            origin,
            f"is no function or class but of type {type(loaded).__name__}",
            f"Give something called with {wanted}",
        )
    signature = _signature(loaded)
    if signature is not None:
        try:
            signature.bind(*call.arguments)
        except TypeError as error:
            why = f"takes {signature}, but is called with {wanted}: {error}"
            raise _refused(option, path, origin, why, f"Let it take {wanted}") from error
    missing = [name for name in call.methods if inspect.isclass(loaded) and not callable(getattr(loaded, name, None))]
    if missing:
        raise _refused(option, path, origin, f"has no method {' and no '.join(missing)}", f"Define {', '.join(missing)}")
    if call.must_be_async and not _is_async(loaded):
        raise _refused(option, path, origin, "is not async", f"Define it with `async def` {wanted}")
    return UserCode(option, path, str(signature or ""))


def _refused(option: str, path: str, origin: str, why: str, remedy: str) -> ConfigError:
    return ConfigError([Problem(option, path, origin, why, remedy)])


def _signature(loaded: Callable[..., Any]) -> inspect.Signature | None:
    """None for what is written in C and says nothing."""
    try:
        return inspect.signature(loaded)
    except ValueError:
        return None


def _is_async(loaded: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(loaded) or inspect.iscoroutinefunction(type(loaded).__call__)
