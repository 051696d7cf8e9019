"""Lists the arguments of the pinned sglang server and router, so that a slip is refused before anything is started.

python tools/list_server_arguments.py            write src/miles/config/argument_lists/{sglang,router}.json
python tools/list_server_arguments.py --check    exit 1 if a list is not what would be written

Needs both packages; reads their argument parsers and starts nothing.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "src" / "miles" / "config" / "argument_lists"
TYPES = {int: "int", float: "float", str: "str", json.loads: "json", None: "str"}
BY_NAME = {"human_readable_int": "size", "json_list_type": "json"}


def parsers() -> Mapping[str, tuple[str, argparse.ArgumentParser]]:
    """Server → distribution and its parser."""
    from sglang.srt.server_args import ServerArgs
    from sglang_router.router_args import RouterArgs

    made = {"sglang": ("sglang", ServerArgs), "router": ("sglang-router", RouterArgs)}
    found = {}
    for server, (distribution, source) in made.items():
        parser = argparse.ArgumentParser()
        source.add_cli_args(parser)
        found[server] = (distribution, parser)
    return found


def describe(action: argparse.Action) -> dict[str, Any]:
    """``type`` (flag, int, float, str, json, size), ``choices``, ``many`` where several values may be given, and ``help``."""
    is_flag = action.nargs == 0
    name = getattr(action.type, "__name__", "")
    kind = "flag" if is_flag else TYPES.get(action.type) or BY_NAME.get(name, "str")  # type: ignore[arg-type]
    told: dict[str, Any] = {"type": kind}
    if action.choices is not None and not is_flag:
        told["choices"] = sorted(str(choice) for choice in action.choices)  # some are sets
    if action.nargs in ("+", "*") or type(action).__name__ == "_AppendAction":
        told["many"] = True
    if action.help and action.help != argparse.SUPPRESS:
        told["help"] = " ".join(action.help.split())
    return told


def page(server: str, distribution: str, parser: argparse.ArgumentParser) -> str:
    """The text of a list: one argument a line, so that a new version shows as a readable difference."""
    arguments, aliases = {}, {}
    for action in parser._actions:
        names = [name.removeprefix("--") for name in action.option_strings if name.startswith("--")]
        if not names or names[0] == "help":
            continue
        arguments[names[0]] = describe(action)
        aliases |= {alias: names[0] for alias in names[1:] if not alias.startswith("no-")}
    lines = [f"  {json.dumps(name)}: {json.dumps(arguments[name])}" for name in sorted(arguments)]
    others = [f"  {json.dumps(alias)}: {json.dumps(aliases[alias])}" for alias in sorted(aliases)]
    head = f'{{\n"server": {json.dumps(server)},\n"version": {json.dumps(version(distribution))},\n'
    return head + '"arguments": {\n' + ",\n".join(lines) + '\n},\n"aliases": {\n' + ",\n".join(others) + "\n}\n}\n"


def main() -> int:
    """Write the lists, or check them."""
    stale = []
    for server, (distribution, parser) in parsers().items():
        path, text = FOLDER / f"{server}.json", page(server, distribution, parser)
        if path.exists() and path.read_text() == text:
            continue
        stale.append(path.name)
        if "--check" not in sys.argv:
            path.write_text(text)
    if stale and "--check" in sys.argv:
        print(f"not what the installed packages say: {', '.join(stale)}. Run: python tools/list_server_arguments.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
