"""Ways to write the same configuration down, and values that suit an option."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from miles.config.commands import COMMANDS
from miles.config.options.placement import Colocated, Disaggregated, RankOptions
from miles.config.options.rollout import FullyAsync, OneStepOff, SyncRollout
from miles.config.registry import option_table
from miles.config.resolve import examine, resolve, resolve_sft
from miles.config.sources import FlagValue, Sources
from miles.errors import ConfigError

VARIANTS = {
    "sync": ("train", {}),
    "colocated": ("train", {"colocate": True}),
    "one_step_off": ("train-async", {}),
    "fully_async": ("train-async", {"fully_async": True}),
    "sft": ("sft", {}),
}
OF_SFT = {"num_rollout": ..., "rm_type": ..., "train_iters": "10", "example_format": "prompt-label"}
CHOSEN = {
    "sync": (SyncRollout, Disaggregated),
    "colocated": (SyncRollout, Colocated),
    "one_step_off": (OneStepOff, Disaggregated),
    "fully_async": (FullyAsync, Disaggregated),
    "sft": (RankOptions,),
}
_numbers = itertools.count()


@dataclass(frozen=True)
class Bench:
    """Builds sources around a folder with a model and prompts."""

    folder: Path

    @property
    def needed(self):
        return {
            "hf_checkpoint": str(self.folder / "model"),
            "prompt_data": str(self.folder / "prompts.jsonl"),
            "num_rollout": "10",
            "rm_type": "exact",
            "device": "cpu",
        }

    def file(self, text):
        path = self.folder / f"file{next(_numbers)}.toml"
        path.write_text(text)
        return path

    def sources(self, flags=None, env=None, files=(), *, bare=False, preset=None):
        given = {} if bare else dict(self.needed)
        given |= flags or {}
        return Sources(
            flags={name: flag(name, value) for name, value in given.items() if value is not ...},
            config_files=tuple(self.file(text) for text in files),
            preset=preset,
            environ=env or {},
            cwd=self.folder,
        )

    def examine(self, command, flags=None, env=None, files=(), **more):
        if command == "sft" and not more.get("bare"):
            flags = OF_SFT | (flags or {})
        return examine(command, self.sources(flags, env, files, **more))

    def resolve(self, command, flags=None, env=None, files=(), **more):
        if command == "sft":
            return resolve_sft(self.sources(OF_SFT | (flags or {}), env, files, **more))
        return resolve(command, self.sources(flags, env, files, **more))


def refuse(bench, command, flags=None, env=None, files=(), *, preset="reverse"):
    """The problems for which a command is refused, on top of a preset."""
    with pytest.raises(ConfigError) as caught:
        resolve(command, bench.sources(flags, env, files, bare=True, preset=preset))
    assert caught.value.exit_code == 2
    return caught.value.problems


def flag(name, value):
    option = option_table().get(name)
    if option is None:
        return FlagValue(value, "--" + name.replace("_", "-"))
    return FlagValue(value, option.negative_flag if value is False else option.flag)


def toml(value):
    """A TOML literal, written without the library under test."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(str(value)) if isinstance(value, (str, Path)) else repr(value)


def variable_text(value):
    """A value as an environment variable holds it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return json.dumps([list(map(str, item)) if isinstance(item, tuple) else item for item in value])
    return str(value)


def flag_value(value):
    """A value as the command line hands it over: text, a switch, or a sequence of them."""
    if isinstance(value, bool):
        return value
    if isinstance(value, tuple):
        return tuple(tuple(map(str, item)) if isinstance(item, tuple) else str(item) for item in value)
    return str(value)


def shown_text(value):
    """What the resolved table has to show for a value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(f"{item[0]}={item[1]}" if isinstance(item, tuple) else str(item) for item in value)
    return str(value)


def good_values(option):
    """Two different values within the bounds of an option."""
    shape = option.shape
    if shape.pairs:
        return ((("one", "/x/1"),), (("two", "/x/2"), ("three", "/x/3")))
    if shape.repeated:
        return ((1, 2), (3,)) if shape.scalar is int else (("a b", "c"), ("d",))
    if shape.scalar is bool:
        return (True, False)
    if shape.choices:
        return (shape.choices[-1], shape.choices[0])
    return {int: (7, 3), float: (0.5, 0.25) if not _at_least_one(option) else (1.5, 2.5), str: ("some", "other"),
            Path: ("/x/a", "/x/b")}[shape.scalar]  # fmt: skip


def _at_least_one(option):
    return bool({("ge", 1), ("gt", 1)} & set(option.bounds))


def owned_names(variant):
    """The options that a variant has, by the classes alone."""
    command, _ = VARIANTS[variant]
    root = COMMANDS[command].model_fields
    sets = [root[section].annotation for section in root if section not in ("rollout", "placement")]
    return {name for option_set in (*sets, *CHOSEN[variant]) for name in option_set.model_fields}
