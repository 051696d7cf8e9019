"""What a run folder says about where to go on: all is restored before anything starts, and nothing is missing in silence."""

import json
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from miles.config.resolution import Resolution
from miles.config.resolve import resolve
from miles.config.sources import FlagValue, Sources
from miles.errors import CheckpointError
from miles.loops.records import CheckpointSaver
from miles.loops.resume import Start, find_start, record_start, resume_notes, with_ledger
from miles.rollout.ledger import Ledger
from miles.tracking.run_folder import RunFolder, open_run_folder
from miles.types import Group
from tests.loops.fakes import make_group
from tests.rollout.simulated import source

pytestmark = pytest.mark.unit
PROMPTS = source()


def finished_group(index: int) -> Group:
    """A group on the prompt at its place."""
    prompt, made = PROMPTS.prompt(index), make_group(index, 1)
    samples = tuple(replace(sample, prompt_ids=prompt.token_ids) for sample in made.samples)
    return Group(prompt, samples, 1)


class FolderPolicy:
    """Saves an empty folder."""

    async def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)


def resolution_of(folder: Path, *, accepts: bool = False) -> Resolution:
    flags = {"run_dir": FlagValue(str(folder), "--run-dir"), "fully_async": FlagValue(True, "--fully-async")}
    if accepts:
        flags["accept_missing_state"] = FlagValue(True, "--accept-missing-state")
    return resolve("train-async", Sources(flags=flags, preset="reverse", environ={}, cwd=folder))


async def a_run(path: Path, *, published: bool = True) -> RunFolder:
    """A run killed two rollouts after the checkpoint of rollout 3: groups 0-7 trained, 8 and 9 finished, 10 in flight."""
    folder, ledger = open_run_folder(path, None, "train-async"), Ledger()
    record_start(folder, resolution_of(path), find(folder))
    for _ in range(11):
        ledger.reserve()
    for index in range(10):
        ledger.buffer(finished_group(index))
    trained = tuple(finished_group(index) for index in range(8))
    for group in trained:
        ledger.start_training(group.index)
    ledger.mark_trained(type("Made", (), {"groups": trained})())  # type: ignore[arg-type]
    await CheckpointSaver(folder, FolderPolicy(), ledger, print).save(4, 4, weights_published=published)  # type: ignore[arg-type]
    rows = [{"rollout_id": rollout_id} for rollout_id in range(-1, 6)]
    (path / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
    return folder


def find(folder: RunFolder, *, accepts: bool = False) -> Start:
    """Where the next start would go on."""
    resolution = resolution_of(folder.path, accepts=accepts)
    return with_ledger(find_start(folder, resolution), resolution, PROMPTS)


def rows_of(path: Path) -> list[int]:
    return [json.loads(line)["rollout_id"] for line in path.read_text().splitlines()]


async def test_a_killed_run_goes_on_with_what_was_finished(tmp_path: Path) -> None:
    folder = await a_run(tmp_path)
    start = find(folder)
    assert (start.state.rollouts_done, start.state.weight_version) == (4, 4)
    assert start.ledger.finished() == (finished_group(8), finished_group(9))
    counts = start.ledger.counts()
    assert (counts["ledger/trained"], counts["ledger/buffered"], counts["ledger/waiting"]) == (8, 2, 1)
    moved = record_start(folder, resolution_of(tmp_path), start)
    assert rows_of(tmp_path / "metrics.jsonl") == [-1, 0, 1, 2, 3]
    assert rows_of(tmp_path / "metrics.after-3.jsonl") == [4, 5]
    assert resume_notes(start, moved) == [
        "resuming after rollout 3, with 2 finished groups; 2 later rows of metrics.jsonl moved aside"
    ]


async def test_weights_between_two_publications_get_a_version_of_their_own(tmp_path: Path) -> None:
    folder = await a_run(tmp_path, published=False)
    assert find(folder).state.weight_version == 5


async def test_without_a_checkpoint_the_run_begins_anew(tmp_path: Path) -> None:
    folder = await a_run(tmp_path)
    for file in sorted(folder.checkpoints.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    start = find(folder)
    moved = record_start(folder, resolution_of(tmp_path), start)
    assert (start.checkpoint, start.state.rollouts_done, start.ledger.issued, moved) == (None, 0, 0, 7)
    assert rows_of(tmp_path / "metrics.jsonl") == []
    assert rows_of(tmp_path / "metrics.after-start.jsonl") == list(range(-1, 6))
    assert "begins anew; 7 later rows" in resume_notes(start, moved)[0]


async def test_a_kill_before_the_pointer_moved_costs_no_checkpoint(tmp_path: Path) -> None:
    folder = await a_run(tmp_path)
    (folder.checkpoints / "latest").unlink()
    (folder.checkpoints / "rollout-000009").mkdir()
    assert find(folder).state.rollouts_done == 4


@pytest.mark.parametrize("damage", ["cut", "gone", "other"])
async def test_missing_samples_are_an_error_or_sampled_again(tmp_path: Path, damage: str) -> None:
    folder = await a_run(tmp_path)
    path = folder.checkpoint_for(3) / "groups.jsonl"
    {"cut": lambda: path.write_bytes(path.read_bytes()[:-9]), "gone": path.unlink, "other": lambda: path.write_text("{}\n")}[
        damage
    ]()
    with pytest.raises(CheckpointError, match="--accept-missing-state"):
        find(folder)
    start = find(folder, accepts=True)
    assert (start.state.rollouts_done, start.ledger.counts()["ledger/waiting"]) == (4, 3)
    assert "2 groups are lost" in resume_notes(start, 0)[0]


@pytest.mark.parametrize("damage", ["state", "ledger", "pointer"])
async def test_a_damaged_state_is_an_error_or_a_new_beginning(tmp_path: Path, damage: str) -> None:
    folder = await a_run(tmp_path)
    state = folder.checkpoint_for(3) / "state.json"
    if damage == "pointer":
        (folder.checkpoints / "latest").write_text("rollout-000042\n")
    elif damage == "state":
        state.write_text(state.read_text()[:-3])
    else:
        state.write_text(state.read_text().replace('"issued": 11', '"issued": 12'))
    with pytest.raises(CheckpointError):
        find(folder)
    start = find(folder, accepts=True)
    assert (start.checkpoint, start.state.rollouts_done) == (None, 0)
    assert "begins anew, its trained rollouts are lost" in resume_notes(start, 5)[0]


def test_a_first_start_has_nothing_to_say(tmp_path: Path) -> None:
    folder = open_run_folder(tmp_path, None, "train")
    assert resume_notes(find(folder), 0) == []
