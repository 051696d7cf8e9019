"""Resolves the extra ``sglang`` for machines with NVIDIA GPUs, without installing it: ``constraints-sglang.txt``.

python tools/resolve_sglang.py            ask pip's dry run and write the pins
python tools/resolve_sglang.py --check    exit 1 if pip, held to the pins, does not find exactly them

Needs a package index and about a minute; downloads wheels' metadata, and those wheels whose index serves none beside them.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PINS = ROOT / "constraints-sglang.txt"
HEAD = """\
# What `pip install -c constraints-sglang.txt '.[sglang]'` installs on Linux, x86-64, Python 3.11, for NVIDIA GPUs.
# Written by tools/resolve_sglang.py from pip's dry run; sglang's own pins decide. CPUs: requirements/sglang-cpu.txt.
"""


def resolve(*more: str) -> Sequence[str]:
    """``name==version`` of everything that the extra would bring, by name.

    Raises:
        SystemExit: pip finds no solution; its words are on the terminal.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--only-binary", ":all:"]
        done = subprocess.run([*pip, "--report", str(report), *more, f"{ROOT}[sglang]"], check=False)
        if done.returncode:
            sys.exit(done.returncode)
        found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    return sorted(f"{item['name'].lower()}=={item['version']}" for item in found if item["name"] != "miles")


def pins() -> Sequence[str]:
    """The lines of the file that pin something."""
    return [line for line in PINS.read_text().splitlines() if line and not line.startswith("#")]


def main() -> int:
    """Write the pins, or check them."""
    if "--check" not in sys.argv:
        PINS.write_text(HEAD + "".join(f"{pin}\n" for pin in resolve()))
        return 0
    found = set(resolve("-c", str(PINS)))
    for pin in sorted(found ^ set(pins())):
        print(f"{'missing' if pin in found else 'not needed'}: {pin}")
    return 1 if found != set(pins()) else 0


if __name__ == "__main__":
    sys.exit(main())
