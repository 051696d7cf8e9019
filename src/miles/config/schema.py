"""JSON Schema of configuration files, for editors that complete and check TOML: made from the option sets.

Draft 2020-12, https://json-schema.org/draft/2020-12/schema. Says what one key may hold; what keys mean together is left
to the resolver.
"""

from collections.abc import Iterable
from typing import Any

from miles.config.commands import COMMANDS
from miles.config.reading import UNSET
from miles.config.registry import REQUIRED, SECTIONS, Option, all_options, selector_of, variants_of

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {"bool": "boolean", "int": "integer", "float": "number", "str": "string", "Path": "string"}
_BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}


def json_schema(command: str | None = None) -> dict[str, Any]:
    """The schema of a file for one command, or of a file that serves both."""
    commands = [command] if command else list(COMMANDS)
    options = [option for option in all_options() if set(option.commands) & set(commands)]
    tables = {name: _command_table(name, options) for name in commands}
    title = f"Options of miles {command}" if command else "Options of miles"
    definitions = {option.name: option_schema(option) for option in options}
    return {"$schema": DRAFT, "title": title, **_object(options, tables), "$defs": definitions}


def _command_table(command: str, options: Iterable[Option]) -> dict[str, Any]:
    own = [option for option in options if command in option.commands]
    switches = {switch for section in SECTIONS for variant in variants_of(command, section) if (switch := selector_of(variant))}
    variants = {switch.replace("_", "-"): _variant_table(command, switch, own) for switch in sorted(switches)}
    return {"description": f"Counts only for `miles {command}`.", **_object(own, variants)}


def _variant_table(command: str, switch: str, options: Iterable[Option]) -> dict[str, Any]:
    own = [option for option in options if _counts_with(option, command, switch)]
    return {"description": f"Counts only with --{switch.replace('_', '-')}.", **_object(own, {})}


def _counts_with(option: Option, command: str, switch: str) -> bool:
    """Whether the variant that a switch chooses has an option, or leaves its section alone."""
    sections = {section for section in SECTIONS for variant in variants_of(command, section) if selector_of(variant) == switch}
    owners = [owner for owner in option.owners if owner.command == command]
    return any(owner.section not in sections or selector_of(owner.option_set) == switch for owner in owners)


def _object(options: Iterable[Option], tables: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {option.name: {"$ref": f"#/$defs/{option.name}"} for option in options}
    for name, table in tables.items():  # `colocate` is a switch and the name of a table
        properties[name] = {"anyOf": [properties[name], table]} if name in properties else table
    return {"type": "object", "additionalProperties": False, "properties": properties}


def option_schema(option: Option) -> dict[str, Any]:
    """What a file may hold for one option."""
    value = _scalar(option)
    if option.shape.pairs:
        pair = {"type": "array", "prefixItems": [{"type": "string"}, value], "items": False, "minItems": 2}
        value = {"anyOf": [{"type": "object", "additionalProperties": value}, {"type": "array", "items": pair}]}
    elif option.shape.repeated:
        value = {"type": "array", "items": value}
    if option.shape.optional or option.shape.repeated:
        value = {"anyOf": [*value.get("anyOf", [value]), {"const": UNSET}]}
    return {"description": option.help, **value, **_default(option)}


def _scalar(option: Option) -> dict[str, Any]:
    if option.choices:
        return {"enum": list(option.choices)}
    bounds = {_BOUNDS[bound]: limit for bound, limit in option.bounds}
    return {"type": _TYPES[option.shape.scalar.__name__], **bounds}


def _default(option: Option) -> dict[str, Any]:
    """The default, unless there is none, or commands differ in it."""
    found = {repr(owner.option_set.model_fields[option.name].default) for owner in option.owners}
    if option.default in (REQUIRED, None, ()) or (len(found) > 1 and not option.meta.selector):
        return {}
    return {"default": option.default}
