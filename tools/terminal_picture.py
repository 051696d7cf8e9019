"""Run a command in a real terminal (tmux) and write what its screen shows as an SVG.

    python tools/terminal_picture.py OUT.svg --columns 110 --lines 40 -- miles train-async --fully-async --preset reverse

Needs tmux. `--after SECONDS` takes the picture while the command runs; without it, when the command has ended.
"""

import argparse
import os
import shlex
import subprocess
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

# rich's own template loads fonts from the network; this one names what a reader's system has
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


def tmux(*words: str) -> str:
    """Output of a tmux command on a server of our own."""
    return subprocess.run(["tmux", "-L", f"miles-{os.getpid()}", *words], check=True, capture_output=True, text=True).stdout


def screen_of(command: list[str], columns: int, lines: int, after: float | None, limit: float) -> str:
    """What a terminal shows after the command, or after so many seconds of it; with colours as escape codes."""
    done = Path(f"/tmp/miles-picture-{os.getpid()}")
    script = f"{shlex.join(command)}; touch {done}; sleep 600"
    tmux(
        "new-session", "-d", "-x", str(columns), "-y", str(lines), "-s", "picture", "env", "-u", "NO_COLOR", "bash", "-c", script
    )
    try:
        began = time.monotonic()
        while not done.exists() and time.monotonic() - began < (limit if after is None else after):
            time.sleep(0.2)
        return tmux("capture-pane", "-e", "-p", "-t", "picture")
    finally:
        tmux("kill-server")
        done.unlink(missing_ok=True)


def write_svg(screen: str, command: list[str], columns: int, out: Path) -> None:
    """Draw the screen."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text.from_ansi(screen.rstrip()), soft_wrap=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(console.export_svg(title=shlex.join(command), code_format=SVG))


def main() -> None:
    """Run, look, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--columns", type=int, default=110)
    parser.add_argument("--lines", type=int, default=40)
    parser.add_argument("--after", type=float)
    parser.add_argument("--limit", type=float, default=300)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    screen = screen_of(arguments.command, arguments.columns, arguments.lines, arguments.after, arguments.limit)
    write_svg(screen, arguments.command, arguments.columns, arguments.out)


if __name__ == "__main__":
    main()
