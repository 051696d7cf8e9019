"""Every `miles` command that the documentation shows is accepted by the command line."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from miles_cli.app import app

pytestmark = pytest.mark.cli
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)


def shown_commands() -> list[tuple[str, str]]:
    """(page, command) of each line of a bash block that runs miles itself."""
    lines = [
        (page.name, line.strip()) for page in PAGES for block in BLOCK.findall(page.read_text()) for line in block.splitlines()
    ]
    commands = [
        (page, re.split(r"&& \S*bin/miles ", line)[-1].removeprefix("miles ")) for page, line in lines if "miles " in line
    ]
    return [(page, command) for page, command in commands if command.startswith(("train", "config"))]


def test_there_are_commands_to_check() -> None:
    assert any(page == "README.md" for page, _ in shown_commands())


@pytest.mark.parametrize(("page", "command"), shown_commands())
def test_it_is_accepted(page: str, command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0].startswith("train") and "--dry-run" not in words:
        words.append("--dry-run")
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, f"{page}: {command}\n{result.output}"


def test_pages_link_only_to_what_is_there() -> None:
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text())]
    assert [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()] == []
