"""The recipes that come with miles: folders with a ``preset.toml`` and whatever it points to."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

PRESETS = Path(__file__).parent.parent / "presets"
PRESET_FILE = "preset.toml"


def preset_names() -> tuple[str, ...]:
    """Names of the presets, sorted."""
    return tuple(sorted(file.parent.name for file in PRESETS.glob(f"*/{PRESET_FILE}")))


def preset_file(name: str) -> Path:
    """The TOML file of a preset; it need not exist."""
    return PRESETS / name / PRESET_FILE


def preset_description(name: str) -> str:
    """One line on what a preset does; empty where it says nothing."""
    with preset_file(name).open("rb") as file:
        return str(tomllib.load(file).get("description", ""))


def preset_needs(name: str | None) -> Mapping[str, str]:
    """Option → how to come by what a preset cannot bring (a model, its data); empty where it brings everything."""
    if name not in preset_names():
        return {}
    with preset_file(str(name)).open("rb") as file:
        return {option: str(text) for option, text in tomllib.load(file).get("needs", {}).items()}
