"""Trackers show what metrics.jsonl says, and one that fails takes nothing with it."""

import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.config.options.run import RunOptions
from miles.config.tracker_checks import PACKAGES
from miles.errors import TrackerError
from miles.tracking import trackers as tracking
from miles.tracking.trackers import TrackedRun, Trackers, open_trackers

pytestmark = pytest.mark.unit
STARTS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=4)


@pytest.fixture(scope="module", autouse=True)
def names_in_order():
    """TensorBoard reads event files by name; those of one process and second differ by a number that must not grow a digit."""
    from tensorboard.summary.writer import event_file_writer as library

    with mock.patch.object(library, "_global_uid", library.AtomicCounter(10**6)):
        yield


class Listing:
    """Remembers; fails from its ``fails_at``-th row on, or at the end."""

    def __init__(self, name="listing", fails_at=None, fails_to_close=False):
        self.name, self.rows, self.closed = name, [], None
        self.fails_at, self.fails_to_close = fails_at, fails_to_close

    def log(self, row, step):
        if len(self.rows) == self.fails_at:
            raise TrackerError(f"{self.name} is full.")
        self.rows.append((step, row))

    def close(self, *, failed):
        self.closed = "failed" if failed else "done"
        if self.fails_to_close:
            raise TrackerError(f"{self.name} could not close.")


def tracked(folder, first_step=0, **options):
    return TrackedRun(folder, RunOptions(**options), first_step, {"lr": "1e-05", "wandb_key": "…"})


def test_one_that_fails_is_said_once_and_left_out():
    said, whole, full = [], Listing(), Listing("the other", fails_at=1)
    with Trackers([full, whole], said.append) as opened:
        for number in range(3):
            opened.log({"rollout_id": number, "train/loss": float(number)})
    assert said == ["the other is full. It gets no more rows; metrics.jsonl has them all"]
    assert [step for step, _ in whole.rows] == [1, 2, 3]
    assert (whole.closed, full.closed) == ("done", "failed")


def test_what_is_no_number_stays_out():
    kept = Listing()
    Trackers([kept], print).log({"rollout_id": -1, "eval/x": float("nan"), "eval/y": float("inf"), "eval/z": 0.5})
    assert kept.rows == [(0, {"rollout_id": -1, "eval/z": 0.5})]


def test_one_that_cannot_close_is_said_and_the_others_close():
    said, other = [], Listing()
    with Trackers([Listing(fails_to_close=True), other], said.append):
        pass
    assert said == ["listing could not close."]
    assert other.closed == "done"


def test_a_run_that_fails_is_a_failed_run_there():
    kept = Listing()
    with pytest.raises(RuntimeError), Trackers([kept], print):
        raise RuntimeError
    assert kept.closed == "failed"


@pytest.mark.parametrize("error", [TrackerError("no such host."), KeyboardInterrupt()])
def test_one_that_cannot_start_closes_those_before_it(monkeypatch, tmp_path, error):
    first = Listing()

    def broken(run):
        raise error

    monkeypatch.setattr(tracking, "_starters", lambda options: iter([lambda run: first, broken]))
    with pytest.raises(type(error)):
        open_trackers(tracked(tmp_path), print)
    assert first.closed == "failed"


@pytest.mark.parametrize(("option", "package"), PACKAGES.items())
def test_a_package_that_is_broken_is_said(monkeypatch, tmp_path, option, package):
    for name in [name for name in sys.modules if name.partition(".")[0] == package or name.startswith("miles.tracking.")]:
        if name != "miles.tracking.trackers":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # importing it raises ImportError
    with pytest.raises(TrackerError, match=f"could not start: ModuleNotFoundError: .*{package}"):
        open_trackers(tracked(tmp_path, **{option: True}), print)


def test_a_folder_keeps_its_name_elsewhere(tmp_path):
    name = tracking.id_of(tmp_path, "some_id")
    assert tracking.id_of(tmp_path, "some_id") == name != tracking.id_of(tmp_path, "other_id")
    assert len(name) == 8


def test_nothing_is_imported_for_a_run_without_trackers(tmp_path):
    said = []
    with open_trackers(tracked(tmp_path), said.append) as opened:
        opened.log({"rollout_id": 0})
    assert (said, list(tmp_path.iterdir())) == ([], [])


def shown(folder):
    """What TensorBoard shows of a metric: (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    return [(event.step, event.value) for event in read.Scalars("train/loss")]


@settings(max_examples=15, deadline=None)
@given(STARTS)
def test_tensorboard_shows_every_step_once_whatever_was_resumed(starts):
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), {}
        for number, (back, length) in enumerate(starts):
            first = max(0, len(rows) - back)
            rows = {step: value for step, value in rows.items() if step < first}
            with open_trackers(tracked(folder, first, use_tensorboard=True), print) as opened:
                for step in range(first, first + length):
                    rows[step] = float(100 * number + step)
                    opened.log({"rollout_id": step - 1, "train/loss": rows[step]})
        assert sorted(shown(folder)) == sorted(rows.items())


def test_a_folder_that_cannot_be_written_is_said_with_the_librarys_words(tmp_path):
    (tmp_path / "tensorboard").write_text("")
    with pytest.raises(TrackerError, match=r"TensorBoard could not start: \w+: .*tensorboard"):
        open_trackers(tracked(tmp_path, use_tensorboard=True), print)
