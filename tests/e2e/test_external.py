"""A run on a server of the user's: it gets the weights, and is left as it was found."""

import asyncio
from collections.abc import Callable

import pytest

from miles.engines.client import EngineClient
from miles.engines.transfer.group import UpdateGroup

from ..engines.engine_fixtures import PRESET_MODEL, options_for, running
from .conftest import Collector

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def test_nothing_of_the_run_stays_at_its_server(run_here: Callable[..., Collector], monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[UpdateGroup] = []
    leave = UpdateGroup.leave

    def note(group: UpdateGroup) -> None:
        left.append(group)
        leave(group)

    monkeypatch.setattr(UpdateGroup, "leave", note)  # of the server, which lives in this process; the policy's end does not

    async def state_of(address: str) -> tuple[int, bool]:
        async with EngineClient(address) as client:
            paused = (await client.server_info())["internal_states"][0]["is_paused"]
            assert await client.healthy()
            return await client.weight_version(), paused

    with running(options_for(PRESET_MODEL, num_slots=128)) as address:
        own = ("--rollout-external-engine-addrs", address, "--update-weight-transfer-mode", "broadcast")
        run = run_here("train-async", "--fully-async", "--num-rollout", "4", "--skip-eval-before-train", *own)
        version, is_paused = asyncio.run(state_of(address))
    assert [row["rollout_id"] for row in run.rows if "train/loss" in row] == list(range(4))
    assert (version, is_paused, len(left)) == (run.rows[-1]["eval/weight_version"], False, 1)
    assert not any("did not leave" in note for note in run.notes)
