"""Bucketed transports: the order of calls, the version with the last bucket alone, groups that live as long as their engine."""

import asyncio
from typing import Any

import pytest

from miles.engines.client import EngineClient
from miles.engines.fleet import EngineFleet
from miles.engines.transfer.specs import TensorSpec
from miles.errors import EngineError, PolicyError
from miles.weights.broadcast import BroadcastTransport
from miles.weights.tensor import TensorTransport
from miles.weights.transport import OneEngine

pytestmark = [pytest.mark.unit, pytest.mark.timeout(20)]
BUCKETS = [(TensorSpec("a", "float32", (2, 2)),), (TensorSpec("b", "bfloat16", (3,)),)]


class Source:
    """The policy; notes what it is asked. fails: words for every group. refuses: to join one."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.fails, self.refuses = "", False

    async def stage(self, version: int, bucket_bytes: int, *, shared: bool = False, on_device: bool = False) -> list[Any]:
        self.story.append(f"stage {version} {bucket_bytes}{' shared' * shared}{' on device' * on_device}")
        return BUCKETS

    async def keep_only(self, version: int) -> None:
        self.story.append(f"keep {version}")

    async def payloads(self, version: int, bucket: int, count: int) -> list[str]:
        return [f"v{version} b{bucket} h{number}" for number in range(count)]

    async def device_payloads(self, bucket: int) -> list[str]:
        return [f"b{bucket} rank{rank}" for rank in range(4)]

    async def listen(self, group: str, host: str, size: int, timeout_seconds: float) -> int:
        self.story.append(f"listen {group} {size}")
        return 7

    async def join(self, group: str, size: int, backend: str, timeout_seconds: float) -> None:
        if self.refuses:
            raise PolicyError("nobody came")

    async def leave(self, group: str) -> None:
        self.story.append(f"leave {group}")

    async def broadcast(self, version: int, bucket: int, groups: Any) -> dict[str, str]:
        self.story.append(f"send {bucket} to {'+'.join(groups)}")
        return {group: self.fails for group in groups if self.fails}


class Engine(EngineClient):
    """Notes what it is told; ``refuses`` a path."""

    def __init__(self, name: str, refuses: str = "nothing") -> None:
        super().__init__(f"http://{name}")
        self.told: list[tuple[str, Any]] = []
        self.refuses = refuses

    async def steer(self, path: str, body: Any, *, repeatable: bool) -> Any:
        self.told.append((path, body))
        await asyncio.sleep(0)
        if self.refuses in path:
            raise EngineError(f"{self.address} says no")

    @property
    def paths(self) -> list[str]:
        return [path.strip("/") for path, _ in self.told]


def broadcast(source: Source) -> BroadcastTransport:
    return BroadcastTransport(source, 64, 1, backend="gloo", host="here", run="r", timeout_seconds=1.0)


async def test_the_version_and_the_flush_come_with_the_last_bucket() -> None:
    source, engine = Source(), Engine("a")
    tensor = TensorTransport(source, 64, 2, on_device=False)
    assert await tensor.stage(3) == 22
    await tensor.update(3, OneEngine(5, engine), flushes=True)
    await tensor.settle(3)
    assert source.story == ["stage 3 64 shared", "keep 3"]
    assert engine.paths == ["begin_weight_update", *["update_weights_from_tensor"] * 2, "end_weight_update"]
    assert engine.told[1][1] == {"serialized_named_tensors": ["v3 b0 h0", "v3 b0 h1"], "flush_cache": False}
    last = {"serialized_named_tensors": ["v3 b1 h0", "v3 b1 h1"], "flush_cache": True, "weight_version": "3"}
    assert engine.told[2][1] == last
    assert engine.published == 3


async def test_engines_on_the_policys_gpus_map_the_memory_of_their_own() -> None:
    engines = [Engine("a"), Engine("b")]
    tensor = TensorTransport(Source(), 64, 2, on_device=True)
    await tensor.stage(1)
    await tensor.update(1, EngineFleet(engines), flushes=False)
    handles = [next(body["serialized_named_tensors"] for path, body in engine.told if "tensor" in path) for engine in engines]
    assert handles == [["b0 rank0", "b0 rank1"], ["b0 rank2", "b0 rank3"]]


async def test_a_group_lives_as_long_as_its_engine() -> None:
    source, engines = Source(), [Engine("a"), Engine("b")]
    fleet, transport = EngineFleet(engines, recovers=True), broadcast(source)
    await transport.stage(1)
    await transport.join(fleet)
    await transport.update(1, fleet, flushes=False)
    assert source.story[1:] == ["listen miles-r-0 2", "listen miles-r-1 2", *(f"send {n} to miles-r-0+miles-r-1" for n in (0, 1))]
    await fleet.take_out(0, "gone")
    back = Engine("a")
    await transport.update(1, OneEngine(0, back), flushes=True)  # as ``admit`` does
    await fleet.admit(0, back)
    source.story.clear()
    await transport.join(fleet)
    await transport.update(2, fleet, flushes=False)
    assert source.story == ["leave miles-r-0", *(f"send {n} to miles-r-2+miles-r-1" for n in (0, 1))]


async def test_engines_that_outlive_the_run_leave_their_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(Engine):
        async def steer(self, path: str, body: Any, *, repeatable: bool) -> Any:
            await super().steer(path, body, repeatable=repeatable)
            if "destroy" in path:
                await asyncio.Event().wait()

    monkeypatch.setattr("miles.weights.broadcast.PART_SECONDS", 0.01)
    fleet = EngineFleet([Engine("a"), Engine("b", refuses="destroy"), Busy("c"), Engine("gone")])
    transport = broadcast(Source())
    await transport.join(fleet)
    await fleet.take_out(3, "gone")
    refusal, silence = await transport.part(fleet)
    assert "http://b did not leave the process group miles-r-1: http://b says no" in refusal
    assert "http://c did not leave the process group miles-r-2 within 0.01 s" in silence
    assert all(client.told[-1] == ("/destroy_weights_update_group", {"group_name": f"miles-r-{number}"})
               for number, client in fleet.serving.items() if isinstance(client, Engine))  # fmt: skip
    assert await transport.part(fleet) == []


async def test_an_engine_that_does_not_receive_is_taken_out_and_the_others_go_on() -> None:
    source, engines = Source(), [Engine("a", refuses="from_distributed"), Engine("b")]
    fleet, transport = EngineFleet(engines, recovers=True), broadcast(source)
    await transport.stage(1)
    await transport.update(1, fleet, flushes=False)
    assert fleet.clients == (engines[1],)
    assert engines[1].published == 1 and engines[0].published == 0
    assert "says no" in await fleet.lost(0)


async def test_what_the_policy_could_not_send_is_an_error() -> None:
    source = Source()
    source.fails, transport = "connection closed", broadcast(source)
    await transport.stage(1)
    with pytest.raises(EngineError, match="http://a did not take bucket 0: connection closed"):
        await transport.update(1, OneEngine(0, Engine("a")), flushes=False)


async def test_a_group_that_does_not_come_about_names_the_engine() -> None:
    source = Source()
    source.refuses, transport = True, broadcast(source)
    with pytest.raises(EngineError, match="http://a did not join the policy's group: nobody came"):
        await transport.join(OneEngine(0, Engine("a")))
    source.refuses = False
    with pytest.raises(EngineError, match="http://b says no"):
        await transport.join(OneEngine(0, Engine("b", refuses="init_weights")))


async def test_a_session_that_was_left_open_is_closed_first() -> None:
    class Open(Engine):
        async def steer(self, path: str, body: Any, *, repeatable: bool) -> Any:
            await super().steer(path, body, repeatable=repeatable)
            if self.paths == ["begin_weight_update"]:
                raise EngineError("a weight-update session is already open; call end_weight_update() first")

    engine, tensor = Open("a"), TensorTransport(Source(), 64, 1, on_device=False)
    await tensor.stage(1)
    await tensor.update(1, OneEngine(0, engine), flushes=False)
    assert engine.paths[:4] == ["begin_weight_update", "end_weight_update", "begin_weight_update", "update_weights_from_tensor"]
