"""``miles config schema`` and ``init``: what files may hold, and a file to start from."""

import json

from miles_cli.showing import console_here
from miles_cli.source_options import check_command


def print_schema(command: str | None) -> None:
    """Print the JSON Schema of files for a command, or for both."""
    from miles.config.schema import json_schema

    if command is not None:
        check_command(command)
    console_here().file.write(json.dumps(json_schema(command), indent=2, ensure_ascii=False) + "\n")


def print_starter(command: str | None, preset: str | None) -> None:
    """Print a commented configuration file."""
    from miles.config.starter import starter_toml

    check_command(command or "train")
    console_here().file.write(starter_toml(command or "train", preset))
