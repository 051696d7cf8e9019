"""Turns on shared devices: who is asked what, in which order, and what an engine that comes back between them does."""

from typing import Any

import pytest

from miles.engines.client import EngineClient
from miles.engines.fleet import EngineFleet
from miles.errors import EngineError
from miles.loops.turns import EngineTurns, PolicyInTurn

pytestmark = pytest.mark.unit


class Engine(EngineClient):
    """Notes what it is told."""

    def __init__(self, story: list[str], refuses: str = "") -> None:
        super().__init__("http://engine")
        self.story, self.refuses = story, refuses

    async def steer(self, path: str, body: Any, *, repeatable: bool) -> Any:
        self.story.append(f"{path.split('_', maxsplit=1)[0][1:]} {'+'.join(body['tags'])}")
        if path.startswith(f"/{self.refuses}_"):
            raise EngineError("it will not")

    async def pause(self, mode: Any) -> None:
        self.story.append("pause")


class Policy:
    """Notes what it is told."""

    def __init__(self, story: list[str]) -> None:
        self.story = story

    async def onload(self) -> None:
        self.story.append("onload")

    async def offload(self) -> None:
        self.story.append("offload")

    async def train_on(self, rollout: Any, policy_version: int) -> Any:
        self.story.append("train")


def turns_over(story: list[str], *, rollout: bool = True, train: bool = True, refuses: str = "") -> EngineTurns:
    policy: Any = Policy(story)
    return EngineTurns(EngineFleet([Engine(story, refuses)], recovers=True), policy, rollout, train, 1.0)


async def whole_turn(turns: EngineTurns) -> None:
    rollout: Any = type("Rollout", (), {"rollout_id": 3})
    await PolicyInTurn(turns.policy, turns).train_on(rollout, 0)
    await turns.resume_weights()
    await turns.resume_cache()


async def test_the_policy_trains_while_the_engines_have_no_memory() -> None:
    story: list[str] = []
    await whole_turn(turns_over(story))
    released, resumed = ["pause", "release kv_cache+weights", "onload"], ["pause", "resume weights", "offload", "resume kv_cache"]
    assert story == [*released, "train", *resumed]


async def test_either_half_can_stay() -> None:
    story: list[str] = []
    await whole_turn(turns_over(story, rollout=False))
    assert story == ["pause", "onload", "train", "pause", "offload"]
    story.clear()
    await whole_turn(turns_over(story, train=False))
    assert story == ["pause", "release kv_cache+weights", "train", "pause", "resume weights", "resume kv_cache"]


async def test_an_engine_that_came_back_meanwhile_has_nothing_to_resume() -> None:
    story: list[str] = []
    turns = turns_over(story)
    await turns.give_to_policy("a step")
    await turns.engines.take_out(0, "gone")
    await turns.engines.admit(0, Engine(story))
    story.clear()
    await turns.resume_weights()
    await turns.resume_cache()
    assert story == ["pause", "offload"]


async def test_memory_that_is_not_released_is_an_error_with_its_state() -> None:
    with pytest.raises(EngineError, match="the devices for the policy's step 3: `release` failed: engine 0: it will not"):
        await whole_turn(turns_over([], refuses="release"))
