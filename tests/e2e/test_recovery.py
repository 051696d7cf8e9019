"""An engine that is killed or hangs in the middle of a run loses nothing: it is started again and the counts are right."""

import signal
from collections.abc import Callable

import pytest

from tests.e2e.conftest import RunningMiles

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
Start = Callable[..., RunningMiles]
NUM_ROLLOUTS = 60


@pytest.mark.parametrize(
    ("number", "way"),
    [(signal.SIGKILL, "disk"), (signal.SIGSTOP, "tensor"), (signal.SIGKILL, "broadcast")],
)
def test_a_lost_engine_costs_no_sample(start_miles: Start, number: signal.Signals, way: str) -> None:
    run = start_miles(
        "train-async", "--fully-async", "--preset", "reverse", "--rollout-num-gpus", "2", "--num-rollout", str(NUM_ROLLOUTS),
        "--update-weight-transfer-mode", way, "--check-weight-update",
        "--rollout-health-check-interval", "1", "--rollout-health-check-timeout", "3", "--eval-interval", "1000",
    )  # fmt: skip
    run.wait_for_rows(5)
    run.child("EngineActor").send_signal(number)
    assert run.wait() == 0, run.output[-3000:]
    assert "starting it again (1 of 3)" in run.output
    rows = [row for row in run.rows if "train/loss" in row]
    assert [row["rollout_id"] for row in rows] == list(range(NUM_ROLLOUTS))
    last = rows[-1]
    assert last["ledger/trained"] == NUM_ROLLOUTS * 16
    alive = sum(last[f"ledger/{state}"] for state in ("waiting", "in_flight", "buffered", "in_training"))
    assert last["ledger/issued"] == last["ledger/trained"] + alive
    assert max(row["rollout/staleness/max"] for row in rows) <= 4
    assert run.survivors() == []
