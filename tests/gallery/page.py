"""``docs/errors.md``: every kind of mistake with what miles says about it, written by making the mistakes.

python -m tests.gallery            write the page
python -m tests.gallery --check    exit 1 if the page is not what would be written
"""

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from typer.testing import CliRunner

from miles.config.resolution import Resolution
from miles_cli.app import app
from tests.builders import stopped_run
from tests.gallery.cases import CASES, Case
from tests.pretend import a_machine_with

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
INTRODUCTION = """\
# Errors

Written by `python -m tests.gallery` by making the mistakes; do not edit by hand.

All that is wrong with an invocation is said at once, in the order of the options, before anything is started. Each entry
names the option, its value and where the value came from, says why it cannot be, and what to do. The exit code is 2, where
nothing else is said. On a terminal the same stands in a panel.

Every case finds this `base.toml`, a model folder with a limit of 4096 tokens and a prompt file of ten lines:

```toml
{base}```
"""
ABOUT = {
    "No mistakes": "What is left out here has a meaning, and the configuration says which.\n\n",
}
BASE = """\
hf_checkpoint = "model"
prompt_data = "prompts.jsonl"
rm_type = "exact"
num_rollout = 10
rollout_batch_size = 16
n_samples_per_prompt = 8
device = "cpu"
"""


def page() -> str:
    """The text of the page."""
    sections = [
        f"## {heading}\n\n{ABOUT.get(heading, '')}" + "\n".join(entry(case) for case in cases) for heading, cases in CASES.items()
    ]
    return "\n".join([INTRODUCTION.format(base=BASE), *sections])


def entry(case: Case) -> str:
    """One mistake and its answer."""
    files = "".join(
        f"`{name}`:\n\n```toml\n{text}```\n\n" for name, text in case.files.items() if name.endswith(".toml") and text.strip()
    )
    variables = "".join(f"{name}={value} " for name, value in case.env.items())
    code, said = answers()[case.title]
    ending = "" if code == (0 if case.shows else 2) else f"\nexit code {code}\n"
    return f"### {case.title}\n\n{files}```console\n$ {variables}{case.line}\n{said}```\n{ending}"


@cache
def answers() -> Mapping[str, tuple[int, str]]:
    """What miles says to every mistake, by title; each is made once."""
    with a_machine_with(has_sglang=True, has_router=True):
        return {case.title: answer(case) for cases in CASES.values() for case in cases}


def answer(case: Case) -> tuple[int, str]:
    """The exit code and what stands on standard error, or of what is no mistake the lines that it shows."""
    with working_directory() as folder:
        furnish(folder)
        for name, text in case.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        with start_on(case.cluster):
            result: Any = CliRunner().invoke(app, shlex.split(case.line)[1:], env=dict(case.env), prog_name="miles")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
    said = (
        "".join(line for line in result.stdout.splitlines(True) if line.startswith(case.shows)) if case.shows else result.stderr
    )
    return result.exit_code, re.sub(rf"(/private)?{re.escape(str(folder))}/?", "", said)


@contextmanager
def working_directory() -> Iterator[Path]:
    """An empty folder to be in, without the variables and modules of whoever writes the page."""
    before, environ = Path.cwd(), {name: value for name, value in os.environ.items() if not name.startswith("MILES_")}
    plain = {name: value for name, value in environ.items() if name not in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS")}
    with tempfile.TemporaryDirectory() as name, mock.patch.dict(os.environ, plain, clear=True), own_modules():
        folder = Path(name).resolve()
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


@contextmanager
def own_modules() -> Iterator[None]:
    """Modules of a case are forgotten after it."""
    import importlib

    known, path = set(sys.modules), list(sys.path)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for name in ("mine", "wrong"):
            if name not in known:
                sys.modules.pop(name, None)
        sys.path[:] = path


@contextmanager
def start_on(cluster: Mapping[str, float]) -> Iterator[None]:
    """A start that gets as far as asking the cluster what it has."""

    def start_run(resolution: Resolution, reporter: object) -> int:
        from miles.placement.cluster import refuse_too_small
        from miles.placement.map import seats

        with mock.patch("ray.cluster_resources", return_value=dict(cluster)):
            refuse_too_small(seats(resolution.config, resolution.derived))
        raise AssertionError("a mistake was not refused")

    name = "miles.loops.start"
    stand_in = ModuleType(name)
    stand_in.start_run = start_run  # type: ignore[attr-defined]
    before = sys.modules.get(name)
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before


def furnish(folder: Path) -> None:
    """What every case finds: a model, prompts, ``base.toml``, and two runs that were stopped."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    (folder / "prompts.jsonl").write_text('{"prompt": "1 + 1", "label": "2"}\n' * 10)
    (folder / "base.toml").write_text(BASE)
    for name in ("one", "two"):
        stopped_run(folder / "runs" / name)
    recorded = CliRunner().invoke(app, shlex.split("config show train --config base.toml --format toml"))
    (folder / "runs" / "one" / "config.toml").write_text(recorded.stdout)
