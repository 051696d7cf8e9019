"""A version counts only when every state of its publication was passed."""

import asyncio
from pathlib import Path

import pytest

from miles.clock import WallClock
from miles.errors import EngineError
from miles.weights.publish import DiskPublisher, PublishState

pytestmark = pytest.mark.unit


class Recorder:
    """Policy and engines that write down their calls; ``hangs_in`` never returns."""

    def __init__(self, hangs_in: str = "", fails_in: str = "") -> None:
        self.calls: list[str] = []
        self.steering = asyncio.Lock()
        self.hangs_in, self.fails_in = hangs_in, fails_in

    async def _call(self, name: str, *details: object) -> None:
        self.calls.append(" ".join([name, *map(str, details)]))
        if name == self.hangs_in:
            await asyncio.Event().wait()
        if name == self.fails_in:
            raise EngineError(f"engine says no to {name}")

    async def export_weights(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        await self._call("export", folder.name)

    async def pause(self, mode: str) -> None:
        await self._call("pause", mode)

    async def update_weights_from_disk(self, path: str, version: int, *, flushes: bool) -> None:
        await self._call("update", Path(path).name, version, *["flushes"] * flushes)

    async def continue_generation(self) -> None:
        await self._call("continue")


def publisher(recorder: Recorder, folder: Path) -> DiskPublisher:
    return DiskPublisher(recorder, recorder, folder, "retract", 0.05, WallClock())


async def test_states_come_in_order_and_old_weights_are_removed(tmp_path: Path) -> None:
    recorder = Recorder()
    published = publisher(recorder, tmp_path)
    metrics = await published.publish(5)
    assert recorder.calls == ["export version-5", "pause retract", "update version-5 5 flushes", "continue"]
    assert [path.name for path in tmp_path.iterdir()] == ["version-5"]
    await published.publish(6)
    assert [path.name for path in tmp_path.iterdir()] == ["version-6"]
    assert metrics["perf/update_weights_time"] >= metrics["perf/engines_paused_time"] >= 0


@pytest.mark.parametrize("state", ["export", "pause", "update", "continue"])
async def test_a_state_that_hangs_is_named(tmp_path: Path, state: str) -> None:
    stuck = publisher(Recorder(hangs_in=state), tmp_path)
    with pytest.raises(EngineError, match=f"version 2: `{state}` took longer than"):
        await stuck.publish(2)
    assert stuck.state is PublishState(state)


async def test_the_engines_own_words_reach_the_user(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="engine says no to update"):
        await publisher(Recorder(fails_in="update"), tmp_path).publish(1)


async def test_a_cache_that_is_kept_is_not_flushed(tmp_path: Path) -> None:
    recorder = Recorder()
    await DiskPublisher(recorder, recorder, tmp_path, "in_place", 0.05, WallClock()).publish(1)
    assert recorder.calls[1:3] == ["pause in_place", "update version-1 1"]
