"""Tables, lines and errors: everything is shown at any width, and plain text needs no terminal."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from miles.config.resolution import OriginOf, Row
from miles.config.sources import Origin, OriginKind
from miles.errors import ConfigError, EngineError, Problem
from miles_cli.problems import plain_problems, print_error
from miles_cli.render import by_panel, is_default, plain_rows, print_rows
from miles_cli.wording import duration, rough, shown_value

pytestmark = pytest.mark.cli
LETTERS = st.text("abcdefgh/_.:0123456789", min_size=1, max_size=150)
FLAG = Origin(OriginKind.FLAG, "--lr")
FILE = Origin(OriginKind.FILE, "run.toml:12", "train")
DEFAULT = Origin(OriginKind.DEFAULT, "default")


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)


def pipe() -> Console:
    return Console(file=io.StringIO(), width=80, force_terminal=False, highlight=False)


def shown(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def row(value: str = "0.4", option: str = "lr", chain: tuple[OriginOf, ...] = ()) -> Row:
    return Row("optimizer", "Optimiser", option, value, chain or (OriginOf(FLAG, value), OriginOf(FILE, "0.2")))


@settings(max_examples=60, deadline=None)
@given(width=st.integers(40, 220), value=LETTERS, option=st.text("abc_", min_size=1, max_size=60), text=LETTERS)
def test_a_table_never_cuts(width: int, value: str, option: str, text: str) -> None:
    origin = OriginOf(Origin(OriginKind.FILE, text), value)
    console = terminal(width)
    print_rows([row("Z" * len(value), "Y" * len(option), (origin._replace(origin=Origin(OriginKind.FILE, "X" * len(text))),))],
               console, as_table=True)  # fmt: skip
    out = shown(console)
    assert (out.count("Z"), out.count("Y"), out.count("X")) == (len(value), len(option), len(text))
    assert max(len(line) for line in out.splitlines()) <= width


@settings(max_examples=60, deadline=None)
@given(value=LETTERS)
def test_plain_lines_hold_value_and_origin_in_one_line(value: str) -> None:
    console = pipe()
    print_rows([row(value)], console, as_table=False)
    assert f"lr = {value}  # --lr · over run.toml:12 [train] (0.2)" in shown(console).splitlines()


def test_a_chain_is_told_from_the_top() -> None:
    assert plain_rows([row()]) == ["# Optimiser", "lr = 0.4  # --lr · over run.toml:12 [train] (0.2)"]


def test_derived_values_show_their_arithmetic() -> None:
    derived = Row("data", "Data", "global_batch_size", "128", derived=True, arithmetic="16 × 8 / 1 = 128")
    assert plain_rows([derived])[1] == "global_batch_size = 128  # derived: 16 × 8 / 1 = 128"
    console = terminal(100)
    print_rows([derived], console, as_table=True)
    assert "16 × 8 / 1 = 128" in shown(console)


def test_what_nobody_said_is_known() -> None:
    assert is_default(row(chain=(OriginOf(DEFAULT, "0.4"),)))
    assert not is_default(row())
    assert shown_value(Row("data", "Data", "prompt_data", "")) == "(needed)"
    assert shown_value(row("")) == '""'


def test_panels_come_in_the_order_of_help() -> None:
    rows = [Row("x", panel, "o", "1") for panel in ("Derived", "Run", "Data", "Model and checkpoints")]
    assert list(by_panel(rows)) == ["Model and checkpoints", "Data", "Run", "Derived"]


PROBLEMS = [
    Problem("lr", "nan", "--lr", "is not a finite number", "Give --lr a number above 0"),
    Problem("prompt_data", "", "", "is missing", "Pass --prompt-data FILE"),
]


@pytest.mark.parametrize("make", [pipe, lambda: terminal(60), lambda: terminal(200)])
def test_every_problem_is_listed_with_all_it_has(make) -> None:
    console = make()
    print_error(ConfigError(PROBLEMS), console)
    words = shown(console).replace("│", " ").split()
    for problem in PROBLEMS:
        for part in (problem.option, problem.value, problem.origin.strip("()"), problem.why, problem.remedy):
            assert set(part.split()) <= {word.strip("():") for word in words} | set(words)
    assert "2 problems" in shown(console)


@pytest.mark.parametrize("make", [pipe, lambda: terminal(60)])
def test_what_one_has_to_know_stands_below_the_problems(make) -> None:
    console = make()
    print_error(ConfigError(PROBLEMS, ["changed:", "  num_rollout: 10 → 20  (safe)"]), console)
    assert shown(console).index("Pass --prompt-data FILE") < shown(console).index("num_rollout: 10 → 20  (safe)")


def test_plain_problems_are_two_lines_each() -> None:
    assert plain_problems(PROBLEMS) == [
        "error: 2 problems",
        "  lr = nan (--lr): is not a finite number",
        "    -> Give --lr a number above 0",
        "  prompt_data: is missing",
        "    -> Pass --prompt-data FILE",
    ]
    assert plain_problems(PROBLEMS[:1])[0] == "error: 1 problem"


def test_another_error_is_one_sentence_and_its_brackets_are_no_markup() -> None:
    console = pipe()
    print_error(EngineError("engine 0 said [bold]no[/bold]"), console)
    assert shown(console) == "error: engine 0 said [bold]no[/bold]\n"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (60, "1:00"), (3661, "1:01:01"), (float("inf"), "?")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0 s"), (0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (10**6, "11 days")]
)
def test_rough_times(seconds: float, text: str) -> None:
    assert rough(seconds) == text
