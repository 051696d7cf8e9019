"""Every kind of mistake is answered with its count, its place and a way out, and the page shows what miles really says."""

import os
from pathlib import Path

import pytest

from tests.gallery.cases import CASES, Case
from tests.gallery.page import PAGE, answers, entry, page, working_directory

pytestmark = pytest.mark.cli
ALL = [case for cases in CASES.values() for case in cases]


def test_the_page_is_what_miles_says() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.gallery"


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.title)
def test_a_mistake_is_refused_with_a_way_out(case: Case) -> None:
    code, said = answers()[case.title]
    unusual = 3 if case.cluster else 1 if case.title.startswith("Without the record") else 2
    assert code == (0 if case.shows else unusual), said
    assert "Traceback" not in said
    if case.shows:
        assert all(f"\n{name}" in f"\n{said}" for name in case.shows)
        return
    head, *lines = said.splitlines()
    if head.endswith(("problem", "problems")):
        count = int(head.removeprefix("error: ").split()[0])
        assert sum(line.startswith("    -> ") for line in lines) == count
    else:
        assert head.startswith("error: ")


def test_titles_are_told_apart() -> None:
    titles = [case.title for case in ALL]
    assert len(set(titles)) == len(titles)


def test_an_entry_shows_line_file_and_answer() -> None:
    case = next(case for case in CASES["Names"] if case.title == "An unknown key")
    text = entry(case)
    assert text.startswith(f"### {case.title}\n\n`run.toml`:\n\n```toml\nlr = 1e-5\n")
    assert f"$ {case.line}\nerror: 1 problem\n  rollout_temprature = 0.7 (run.toml:3): " in text


def test_a_working_directory_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILES_LR", "1")
    before = Path.cwd()
    with working_directory() as folder:
        assert Path.cwd() == folder
        assert "MILES_LR" not in os.environ
    assert (Path.cwd(), os.environ["MILES_LR"]) == (before, "1")
    assert not folder.exists()
