"""A version counts only when every state of its publication was passed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from miles.clock import WallClock
from miles.errors import EngineError
from miles.weights.disk import DiskTransport
from miles.weights.publish import Publisher, PublishState

pytestmark = pytest.mark.unit


class Recorder:
    """Everything a publisher talks to; writes down its calls. ``hangs_in`` never returns."""

    def __init__(self, hangs_in: str = "", fails_in: str = "") -> None:
        self.calls: list[str] = []
        self.steering = asyncio.Lock()
        self.hangs_in, self.fails_in = hangs_in, fails_in
        self.serving: dict[int, Any] = {0: self}
        self.load: Any = None

    async def _call(self, name: str, *details: object) -> None:
        self.calls.append(" ".join([name, *map(str, details)]))
        if name == self.hangs_in:
            await asyncio.Event().wait()
        if name == self.fails_in:
            raise EngineError(f"engine says no to {name}")

    async def stage(self, version: int) -> int:
        await self._call("export", version)
        return 12

    async def join(self, engines: Any) -> None:
        await self._call("join")

    async def update(self, version: int, engines: Any, *, flushes: bool) -> None:
        await self._call("update", version, *engines.serving, *["flushes"] * flushes)

    async def settle(self, version: int) -> None:
        await self._call("settle", version)

    async def pause(self, mode: str) -> None:
        await self._call("pause", mode)

    async def continue_generation(self) -> None:
        await self._call("continue")

    def reload_with(self, load: Any) -> None:
        self.load = load

    async def on_all(self, call: Any) -> list[Any]:
        return [await call(self)]

    async def compare(self, version: int, engines: Any) -> None:
        await self._call("check", version)

    async def compare_again(self, version: int, engines: Any) -> None:
        await self._call("check again", version)

    async def resume_weights(self) -> None:
        await self._call("resume", "weights")

    async def resume_cache(self) -> None:
        await self._call("resume", "cache")


def publisher(recorder: Any, mode: Any = "retract", *, checks: bool = True, turns: bool = False) -> Publisher:
    check, shared = (recorder if checks else None), (recorder if turns else None)
    return Publisher(recorder, recorder, mode, 0.05, WallClock(), check, shared)


async def test_states_come_in_order() -> None:
    recorder = Recorder()
    metrics = await publisher(recorder).publish(5)
    order = ["export 5", "join", "pause retract", "update 5 0 flushes", "check 5", "continue", "settle 5"]
    assert recorder.calls == order
    assert metrics["perf/update_weights_time"] >= metrics["perf/engines_paused_time"] >= 0
    assert metrics["perf/update_weights_bytes"] == 12


async def test_engines_that_share_devices_resume_in_two_steps() -> None:
    recorder = Recorder()
    await publisher(recorder, checks=False, turns=True).publish(5)
    steps = ["resume weights", "update 5 0 flushes", "resume cache", "continue", "settle 5"]
    assert recorder.calls == ["export 5", "join", *steps]


@pytest.mark.parametrize("state", ["export", "join", "pause", "update", "check", "continue"])
async def test_a_state_that_hangs_is_named(state: str) -> None:
    stuck = publisher(Recorder(hangs_in=state))
    with pytest.raises(EngineError, match=f"version 2: `{state}` took longer than"):
        await stuck.publish(2)
    assert stuck.state is PublishState(state)


@pytest.mark.parametrize("state", ["join", "pause", "update", "check", "continue"])
async def test_the_engines_own_words_reach_the_user_with_the_state(state: str) -> None:
    with pytest.raises(EngineError, match=f"version 1: `{state}` failed: engine says no to {state}"):
        await publisher(Recorder(fails_in=state)).publish(1)


async def test_a_cache_that_is_kept_is_not_flushed() -> None:
    recorder = Recorder()
    await publisher(recorder, "in_place", checks=False).publish(1)
    assert recorder.calls[2:4] == ["pause in_place", "update 1 0"]


async def test_an_engine_that_comes_back_gets_the_published_weights_and_is_checked() -> None:
    recorder = Recorder()
    await publisher(recorder).publish(3)
    await recorder.load(7, recorder)
    assert recorder.calls[-2:] == ["update 3 7 flushes", "check again 3"]


class FolderPolicy:
    """Writes one file."""

    async def export_weights(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"123")


async def test_folders_of_old_versions_are_removed_once_all_have_the_new_one(tmp_path: Path) -> None:
    disk = DiskTransport(FolderPolicy(), tmp_path)
    for version in (5, 6):
        assert await disk.stage(version) == 3
        await disk.settle(version)
    assert [path.name for path in tmp_path.iterdir()] == ["version-6"]
