"""Evaluation beside training: one at a time, bound to its version, waited for or skipped, the last one always ended."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.errors import EngineError, MilesError, RolloutError
from miles.loops.beside import Beside, Limits
from miles.loops.checkpoint_function import CheckpointFunction
from miles.loops.parts import Cadence, Parts, StopFlag
from miles.loops.records import RunJournal
from miles.loops.retention import RetainingSaver
from miles.loops.run import Run
from miles.loops.schedules import run_schedule
from miles.simulation.virtual_time import VirtualClock, run_virtual
from miles.tracking.reporter import SilentReporter
from miles.tracking.run_folder import open_run_folder
from miles.types import Metrics, Rollout, StepReport
from miles.weights.snapshot import Snapshots
from tests.loops.fakes import FakeParts, FakeRolloutFn, FakeSaver, SilentTrace, Story

pytestmark = pytest.mark.unit


@dataclass
class Measures:
    """Takes ``seconds``; remembers what was running."""

    story: Story
    seconds: float = 5.0
    error: Exception | None = None
    running: int = 0
    staged: int = 0
    pinned: dict[Path, int] = field(default_factory=dict)

    def lend(self, held: Path, name: str) -> Path:
        return held

    async def take(self, version: int) -> Path:
        assert version == self.staged, "weights are pinned while they are the policy's"
        self.pinned[Path(f"version-{version}")] = version
        return Path(f"version-{version}")

    async def __call__(self, folder: Path, weight_version: int) -> Metrics:
        assert self.pinned[folder] == weight_version
        self.running += 1
        assert self.running == 1, "one at a time"
        self.story.tell(f"measure v{weight_version}")
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        if self.error is not None:
            raise self.error
        return {"eval/toy": float(weight_version)}


@dataclass
class SlowParts(FakeParts):
    """A policy whose step takes a second."""

    measures: Measures | None = None

    async def train_on(self, rollout: Rollout, policy_version: int) -> StepReport:
        self.stop.requested |= rollout.rollout_id == self.stop_in_step
        await asyncio.sleep(1)
        return StepReport({"train/loss": 0.5}, 1)

    async def stage(self, version: int) -> None:
        assert self.measures is not None
        self.measures.staged = version


def run_beside(
    schedule: str, cadence: Cadence, *, skips: bool, seconds: float, timeout: float = 1e6, error: Exception | None = None,
    stop_in_step: int | None = None,
) -> tuple[Story, list[str]]:  # fmt: skip
    story, said = Story(), list[str]()

    async def main() -> None:
        clock, stop = VirtualClock(), StopFlag()
        measures = Measures(story, seconds, error)
        beside = Beside(measures, measures, Limits(skips, timeout), clock, SilentTrace(), said.append)
        fake = SlowParts(story, stop, stop_in_step, measures=measures)
        parts = Parts(FakeRolloutFn(story), fake, fake, fake, None, FakeSaver(story), fake, beside)
        try:
            await run_schedule(Run(parts, cadence, clock, SilentTrace(), stop), schedule)  # type: ignore[arg-type]
        finally:
            await beside.close()

    run_virtual(main())
    return story, said


CADENCES = st.builds(
    Cadence, total=st.integers(1, 12), update_weights_interval=st.integers(1, 3), eval_interval=st.none() | st.integers(1, 4),
    save_interval=st.none() | st.integers(1, 4), eval_before_train=st.booleans(),
)  # fmt: skip


@given(st.sampled_from(["sync", "one_step_off", "fully_async"]), CADENCES, st.booleans(), st.sampled_from([0.0, 0.5, 2.5, 20.0]))
@settings(max_examples=80, deadline=None)
def test_every_point_is_measured_or_its_leaving_out_is_told(schedule: str, cadence: Cadence, skips: bool, seconds: float) -> None:
    story, said = run_beside(schedule, cadence, skips=skips, seconds=seconds)
    due = [0] if cadence.eval_before_train else []
    due += [done for done in range(1, cadence.total + 1) if cadence.evaluates_after(done)]
    measured = {row["rollout_id"] + 1: row for row in story.rows if "eval/toy" in row}
    skipped = {row["rollout_id"] + 1: row for row in story.rows if "eval/skipped/weight_version" in row}
    assert sorted([*measured, *skipped]) == due
    assert cadence.total in measured, "the last point is always measured"
    assert all(row["eval/toy"] == row["eval/weight_version"] for row in measured.values())
    assert len(said) == len(skipped)
    assert not skipped or skips
    for done, row in measured.items():
        publishes = [k for k in range(1, done + 1) if cadence.publishes_after(k)]
        assert row["eval/weight_version"] == len(publishes)


def test_training_goes_on_meanwhile() -> None:
    story, _ = run_beside("fully_async", Cadence(6, eval_interval=2, eval_before_train=False), skips=True, seconds=2.5)
    trained = story.events.index("trained 3")
    assert story.events.index("measure v2") < trained
    assert "pause" not in story.events
    kinds = ["eval" if "eval/toy" in row else "skip" if "eval/skipped/weight_version" in row else "step" for row in story.rows]
    assert kinds == ["step", "step", "step", "step", "skip", "eval", "step", "step", "eval"]


def test_waiting_holds_the_loop() -> None:
    story, said = run_beside("sync", Cadence(4, eval_interval=1, eval_before_train=False), skips=False, seconds=10)
    assert [row["eval/weight_version"] for row in story.rows if "eval/toy" in row] == [1, 2, 3, 4]
    assert said == []


def test_what_takes_too_long_is_left_out_also_at_the_end() -> None:
    story, said = run_beside("sync", Cadence(2, eval_before_train=False), skips=False, seconds=1e9, timeout=30)
    assert story.rows[-1] == {"rollout_id": 1, "eval/skipped/weight_version": 2.0}
    assert said == ["the evaluation after rollout 1 (version 2) is left out: it took longer than 30 s (--eval-timeout-seconds)"]


def test_a_stop_does_not_wait() -> None:
    story, said = run_beside("sync", Cadence(9, eval_interval=1), skips=True, seconds=1e6, stop_in_step=1)
    assert said[-1] == "the evaluation after rollout -1 (version 0) is left out: the run ends"
    assert story.events[-1] == "save 2 v2"


@pytest.mark.parametrize(("error", "kind", "words"), [
    (ValueError("mine"), RolloutError, "the evaluation failed: ValueError: mine"),
    (EngineError("gone"), EngineError, "gone"),
])  # fmt: skip
def test_a_failure_ends_the_run_at_the_next_step(error: Exception, kind: type[MilesError], words: str) -> None:
    with pytest.raises(kind, match=words):
        run_beside("sync", Cadence(50, eval_interval=1), skips=True, seconds=1.5, error=error)


async def test_a_checkpoint_stays_until_its_late_evaluation_is_known(tmp_path: Path) -> None:
    class Pending:
        pending = frozenset({1})

    class Writes:
        async def save(self, rollouts_done: int, weight_version: int, *, weights_published: bool) -> None:
            folder.checkpoint_for(rollouts_done - 1).mkdir(parents=True)

        async def settle(self) -> None:
            """Nothing."""

    class Nowhere:
        def write(self, row: Metrics) -> None:
            """Nothing."""

    folder = open_run_folder(tmp_path / "run", None, "train")
    journal, awaited = RunJournal(Nowhere(), SilentReporter(), 9), Pending()  # type: ignore[arg-type]
    saver = RetainingSaver(Writes(), folder, journal, 1, "eval/toy", awaited=awaited)
    for done in (1, 2, 3):
        await saver.save(done, done, weights_published=done != 2)
    left = sorted(path.name for path in folder.checkpoints.glob("rollout-*"))
    assert left == ["rollout-000000", "rollout-000002"]
    for version, score in ((1, 0.9), (3, 0.5)):
        journal.write({"eval/toy": score, "eval/weight_version": float(version)}, 3)
    awaited.pending = frozenset()
    await saver.settle()
    assert sorted(path.name for path in folder.checkpoints.glob("rollout-*")) == left, "the best and the newest"
    journal.write({"eval/toy": 0.95, "eval/weight_version": 3.0}, 3)
    await saver.settle()
    assert sorted(path.name for path in folder.checkpoints.glob("rollout-*")) == ["rollout-000002"]


async def test_a_snapshot_is_a_whole_folder(tmp_path: Path) -> None:
    class Exports:
        async def export_weights(self, folder: Path) -> None:
            folder.mkdir(parents=True)
            for name in ("config.json", "model.safetensors"):
                (folder / name).write_text("third")

    model = tmp_path / "model"
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        model.mkdir(exist_ok=True)
        (model / name).write_text("first")
    snapshots = Snapshots(Exports(), model, tmp_path / "held")
    first = snapshots.lend(await snapshots.take(0), "after-0")
    assert {path.name: path.read_text() for path in first.iterdir()} == dict.fromkeys(
        ("config.json", "tokenizer.json", "model.safetensors"), "first"
    )
    assert {path.name: path.read_text() for path in snapshots.lend(await snapshots.take(3), "after-3").iterdir()} == {
        "config.json": "third", "model.safetensors": "third", "tokenizer.json": "first",
    }  # fmt: skip


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(body: str) -> None:
        (tmp_path / "measured.py").write_text(f"import time\nfrom pathlib import Path\n{body}")

    return write


@pytest.mark.timeout(60)
async def test_a_checkpoint_function_runs_in_a_process(tmp_path: Path, user_module: Callable[[str], None]) -> None:
    user_module(
        "async def evaluate(folder, weight_version):\n"
        "    return {'files': len(list(folder.iterdir())), 'eval/v': weight_version}\n"
    )
    folder = tmp_path / "version-7"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    call = CheckpointFunction("measured:evaluate", tmp_path / "log")
    assert await call(folder, 7) == {"eval/files": 1.0, "eval/v": 7.0}
    assert not folder.exists(), "the snapshot is removed"


@pytest.mark.timeout(60)
async def test_a_checkpoint_function_that_fails_or_hangs(tmp_path: Path, user_module: Callable[[str], None]) -> None:
    user_module("def evaluate(folder, weight_version):\n    if weight_version:\n        time.sleep(1000)\n    return 'text'\n")
    call = CheckpointFunction("measured:evaluate", tmp_path / "log")
    with pytest.raises(RolloutError, match=r"(?s)measured:evaluate of weights version 0 failed.*not numbers by name"):
        await call(tmp_path / "version-0", 0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await call(tmp_path / "version-1", 1)
