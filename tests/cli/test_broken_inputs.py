"""Three hundred broken inputs: each ends with exit code 2 and a sentence that says where, none with a traceback."""

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from miles_cli.app import app
from tests.cli.broken_inputs import KINDS, broken_input
from tests.gallery.page import BASE, working_directory

pytestmark = [pytest.mark.cli, pytest.mark.timeout(60)]
NUM_INPUTS = 300
PLACE = re.compile(
    r"\(--[a-z]|\([^()]*\.toml:\d+|\(\$MILES_|\(command line\)|^  --|\((base|run)\.toml|line \d+ of ", re.MULTILINE
)


def refused(number: int) -> str:
    """What is said about an input; fails where it is not refused as it should be."""
    with working_directory() as folder:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
        (folder / "prompts.jsonl").write_text('{"prompt": "1 + 1", "label": "2"}\n')
        (folder / "base.toml").write_text(BASE)
        broken = broken_input(number, folder)
        words = ["train", "--config", "base.toml", *broken.words, "--dry-run"]
        result: Any = CliRunner().invoke(app, words, env=dict(broken.variables))
    report = f"input {number}, {broken.about}: {broken.words!r:.300} {broken.variables!r:.300}\n{result.output[-2000:]}"
    assert result.exception is None or isinstance(result.exception, SystemExit), f"{report}\n{result.exception!r}"
    assert result.exit_code == 2, report
    assert "Traceback" not in result.output, report
    assert result.stderr.startswith("error: "), report
    assert PLACE.search(result.stderr), report
    return str(result.stderr)


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[kind.__name__ for kind in KINDS])
def test_refused_with_a_place(kind: int) -> None:
    for number in range(kind, NUM_INPUTS + len(KINDS), len(KINDS)):
        said = refused(number)
        assert "-> " in said or "See `" in said
