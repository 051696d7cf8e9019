"""A run as it is watched: plain lines now and then, a live picture, and a summary that can be acted on."""

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from miles.config.resolution import Resolution
from miles.config.resolve import resolve
from miles.config.sources import FlagValue, Sources
from miles.tracking.reporter import RunSummary
from miles.types import Metrics
from miles_cli.live import LiveReporter, PlainReporter, reporter_for
from miles_cli.progress import BLOCKS, RunProgress, evals_in, sparkline
from miles_cli.summary import next_lines, summary_lines

pytestmark = pytest.mark.cli
NUMBERS = st.lists(st.floats(-1e6, 1e6), max_size=80)


class FakeTime:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def resolution(command: str = "train-async", *flags: str) -> Resolution:
    typed = {flag.removeprefix("--").replace("-", "_"): FlagValue(True, flag) for flag in flags}
    return resolve(command, Sources(typed, (), "reverse", {}))


def row(k: int, reward: float = 0.5) -> Metrics:
    return {
        "rollout_id": k,
        "rollout/raw_reward": reward,
        "rollout/staleness/mean": 1.25,
        "rollout/staleness/max": 3.0,
        "perf/tokens_per_second": 1234.5,
        "perf/step_time": 0.5,
    }


def text_of(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@given(values=NUMBERS, width=st.integers(0, 60))
def test_a_sparkline_fits_and_reaches_from_low_to_high(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(width, len(values))
    assert set(line) <= set(BLOCKS)
    if line:
        assert BLOCKS[0] in line
        assert line in (BLOCKS[0] * len(line), line) and (set(line) == {BLOCKS[0]} or BLOCKS[-1] in line)


@given(values=st.lists(st.floats(0, 1), min_size=2, max_size=60))
def test_a_rising_reward_is_a_rising_line(values: list[float]) -> None:
    line = sparkline(sorted(values), 30)
    assert list(line) == sorted(line)


@settings(max_examples=50, deadline=None)
@given(total=st.integers(2, 60), step=st.floats(0.1, 100), data=st.data())
def test_time_left_at_constant_speed_is_exact(total: int, step: float, data: st.DataObject) -> None:
    done = data.draw(st.integers(1, total - 1))
    progress = RunProgress(started=0.0)
    assert progress.seconds_left() is None
    for k in range(done):
        progress.add(row(k), k + 1, total, (k + 1) * step)
    assert progress.seconds_left() == pytest.approx((total - done) * step)


def test_time_left_leaves_out_the_start_up_before_the_first_evaluation() -> None:
    progress = RunProgress(started=0.0)
    progress.add({"eval/reverse": 0.5}, 0, 10, 50.0)
    assert progress.seconds_left() is None
    progress.add(row(0), 1, 10, 52.0)
    assert progress.seconds_left() == pytest.approx(18.0)


def test_only_results_count_as_evaluations() -> None:
    assert evals_in({"eval/reverse": 0.5, "eval/weight_version": 3.0, "eval/reverse/len": 2.0, "perf/x": 1.0}) == {"reverse": 0.5}


def plain(total: int, clock: FakeTime) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    reporter = PlainReporter(resolution("train-async", "--fully-async"), console, clock)
    reporter.stage("starting Ray")
    reporter.progress({"rollout_id": -1, "eval/reverse": 0.5}, 0, total)
    for k in range(total):
        clock.seconds += 2.0
        reporter.progress(row(k), k + 1, total)
    reporter.progress({"rollout_id": total - 1, "eval/reverse": 0.9}, total, total)
    reporter.note("[bold] is text")
    reporter.close()
    return text_of(console).splitlines()


def test_plain_lines_come_every_ten_rollouts_and_for_what_matters() -> None:
    lines = plain(45, FakeTime())
    assert lines == [
        "[0 s] starting Ray",
        "[0 s] rollout 0/45  eval/reverse 0.500",
        *(
            f"[{elapsed}] rollout {k}/45  reward 0.500  staleness 1.25 mean, 3 max of 4  1,234 tokens/s{left}"
            for k, elapsed, left in [
                (1, "2 s", "  1:28 left"),
                (11, "22 s", "  1:08 left"),
                (21, "42 s", "  48 s left"),
                (31, "1:02", "  28 s left"),
                (41, "1:22", "  8 s left"),
                (45, "1:30", ""),
            ]
        ),
        "[1:30] rollout 45/45  eval/reverse 0.900",
        "[1:30] note: [bold] is text",
    ]


def screen(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)


def drawn(reporter: LiveReporter, width: int) -> str:
    console = screen(width)
    console.print(reporter.picture())
    return text_of(console)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_picture_shows_what_is_known_and_fits(width: int) -> None:
    clock = FakeTime()
    reporter = LiveReporter(resolution("train-async", "--fully-async"), screen(width), clock)
    try:
        reporter.stage("starting Ray")
        first = drawn(reporter, width)
        reporter.progress({"rollout_id": -1, "eval/reverse": 0.5}, 0, 40)
        for k in range(20):
            clock.seconds += 1.0
            reporter.progress(row(k, k / 20), k + 1, 40)
        later = drawn(reporter, width)
    finally:
        reporter.close()
    assert "starting Ray" in first
    for word in ("rollout 20/40", "20 s left", "0.950", "1.25 mean, 3 max of 4", "1,234 tokens/s", "0.500 → 0.500", BLOCKS[-1]):
        assert word in " ".join(later.split()), word
    assert "starting" not in later
    assert max(len(line) for line in later.splitlines()) <= width


@pytest.mark.parametrize("ended", [True, False])
def test_the_last_picture_stays_only_where_no_summary_follows(ended: bool) -> None:
    console = screen(80)
    reporter = LiveReporter(resolution("train"), console, FakeTime())
    reporter.progress(row(0), 1, 7)
    if ended:
        reporter.finished(summary(0))
    reporter.close()
    last = text_of(console).rpartition("\x1b[1A\x1b[2K")[2]  # after the last line that was wiped
    assert ("done after 12 rollouts" in last) == ended
    assert ("rollout 1/7" in last) == (not ended)


def test_a_sync_run_shows_no_staleness() -> None:
    console = Console(file=io.StringIO(), width=80)
    reporter = PlainReporter(resolution("train"), console, FakeTime())
    reporter.progress(row(0), 1, 2)
    assert "staleness" not in text_of(console)


def test_the_terminal_decides() -> None:
    config = resolution("train")
    assert isinstance(reporter_for(config, Console(file=io.StringIO())), PlainReporter)
    live = reporter_for(config, Console(file=io.StringIO(), force_terminal=True))
    live.close()
    live.close()
    assert isinstance(live, LiveReporter)


def summary(exit_code: int, reason: str = "") -> RunSummary:
    folder = Path("/runs/a b")
    return RunSummary(folder, exit_code, 12, 63.0, {"reverse": 0.5}, {"reverse": 0.97}, folder / "checkpoints/x", reason)


def test_the_summary_says_what_was_reached_and_where_it_is() -> None:
    assert summary_lines(summary(0)) == [
        "done after 12 rollouts, 1:03",
        "eval/reverse  0.500 → 0.970",
        "run folder  /runs/a b",
        "checkpoint  /runs/a b/checkpoints/x",
    ]
    assert summary_lines(summary(1, "engine 0 died"))[:2] == ["failed after 12 rollouts, 1:03", "engine 0 died"]


@pytest.mark.parametrize("exit_code", [0, 1, 130, 143])
@pytest.mark.parametrize(("command", "flags"), [("train", ()), ("train-async", ()), ("train-async", ("--fully-async",))])
def test_what_to_try_next_is_commands_that_exist(command: str, flags: tuple[str, ...], exit_code: int) -> None:
    import shlex

    from miles.config.registry import find_option

    lines = next_lines(summary(exit_code), resolution(command, *flags))
    commands = [shlex.split(line) for line in lines if line.startswith("  miles")]
    assert commands
    for words in commands:
        assert words[1] in ("train", "train-async", "config", "runs")
        flags_used = [word for word in words if word.startswith("--")]
        assert all(flag in ("--preset", "--config") or find_option(flag) for flag in flags_used)
    again = [words for words in commands if "--run-dir" in words]
    assert bool(again) == (exit_code != 0)
