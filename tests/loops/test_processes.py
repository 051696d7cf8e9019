"""Which processes' CPU time a run can measure: those of roles that are whole and on the driver's node."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from miles.loops.processes import pids_here

pytestmark = [pytest.mark.unit, pytest.mark.timeout(30)]
HERE = "this node"


class Actor:
    """An actor's handle: of process ``pid`` on ``node``, or of one that has ended."""

    def __init__(self, pid: int, node: str = HERE, *, has_ended: bool = False) -> None:
        self._pid, self._node, self._has_ended = pid, node, has_ended
        self.__ray_call__ = SimpleNamespace(remote=self._call)

    async def _call(self, function: Callable[[object], object]) -> object:
        if self._has_ended:
            raise ray.exceptions.ActorDiedError
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: self._node))
            patched.setattr("os.getpid", lambda: self._pid)
            return function(self)


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        ([Actor(2), Actor(3)], {"policy": [1], "engines": [2, 3]}),
        ([Actor(2), Actor(3, "another node")], {"policy": [1]}),
        ([Actor(2), Actor(3, has_ended=True)], {"policy": [1]}),
        ([], {"policy": [1]}),
    ],
    ids=["here", "one elsewhere", "one has ended", "none"],
)
def test_a_role_is_measured_where_all_of_it_is_here(
    monkeypatch: pytest.MonkeyPatch, engines: list[Any], expected: dict[str, list[int]]
) -> None:
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: HERE))
    assert asyncio.run(pids_here({"engines": engines, "policy": [Actor(1)]})) == expected
