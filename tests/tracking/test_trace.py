"""What a trace says of CPU time: of every role, at the beginning and the end of a span."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from miles.clock import WallClock
from miles.tracking.cpu_clocks import CpuClocks, clock_of, num_cores
from miles.tracking.trace import MACHINE, Trace

pytestmark = pytest.mark.unit


def events_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(path.read_bytes().rstrip(b",\n") + b"]")
    return found


@pytest.mark.skipif(clock_of(os.getpid()) is None, reason="this system has no clocks of processes")
def test_spans_say_what_each_role_used(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.json", WallClock())
    with trace.span("policy", "step 0"):
        pass
    trace.watch_cpu(CpuClocks({"engines": [os.getpid(), os.getpid()]}))
    with trace.span("policy", "step 1", version=3):
        began = time.process_time()
        while time.process_time() < began + 0.02:
            pass
    trace.close()
    before, machine, after = events_of(tmp_path / "trace.json")[-3:]
    assert before["args"] == {}
    assert (machine["name"], machine["args"]) == (MACHINE, {"cores": num_cores()})
    assert after["args"]["version"] == 3
    used = {role: after["args"]["cpu_ended"][role] - after["args"]["cpu_began"][role] for role in ("driver", "engines")}
    assert used["driver"] >= 0.02
    assert used["engines"] == pytest.approx(2 * used["driver"], rel=0.1)


@pytest.mark.skipif(clock_of(os.getpid()) is None, reason="this system has no clocks of processes")
def test_a_role_that_lost_a_process_is_left_out() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    clocks = CpuClocks({"engines": [process.pid], "policy": [os.getpid()]})
    assert clocks.read().keys() == {"driver", "engines", "policy"}
    process.communicate(b"\n")
    assert clocks.read().keys() == {"driver", "policy"}
    assert CpuClocks({"engines": [process.pid, os.getpid()]}).read().keys() == {"driver"}


@pytest.mark.skipif(clock_of(os.getpid()) is None, reason="this system has no clocks of processes")
def test_the_time_of_others_that_ended_stays_what_it_was() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    clocks = CpuClocks({}, [process.pid, os.getpid()])
    before = clocks.read()["others"]
    process.communicate(b"\n")
    assert clocks.read()["others"] >= before
