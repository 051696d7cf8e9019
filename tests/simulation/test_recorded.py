"""A synchronous run whose trace says who computed is simulated from CPU seconds, on the cores that it had."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from miles.engines.embedded.work import StepWork, Work
from miles.simulation.recorded import LEAST_STEPS, recorded_workload
from miles.simulation.schedules import resolutions
from miles.simulation.simulate import simulate
from miles.simulation.trace_file import read_trace
from miles.simulation.workload import Overheads
from miles.tracking.cpu_clocks import DRIVER, ENGINES, POLICY
from miles.tracking.trace import ENGINE_WORK, MACHINE, event

from .test_simulate import record, sources

pytestmark = pytest.mark.unit
ROLES = (DRIVER, POLICY, ENGINES)
PASS, ROW, TOKEN, ANSWER = 0.02, 0.0005, 0.0002, 0.002
PARTS = {  # kind → seconds of the span, CPU seconds of driver, policy, engines in it
    "rollout": (1.3, 0.16, 0.0, 1.0),
    "step": (0.8, 0.1, 0.6, 0.0),
    "stage": (0.3, 0.01, 0.2, 0.0),
    "publish": (0.2, 0.02, 0.0, 0.1),
}
REST = 0.03  # CPU seconds of the driver between spans


class Recorder:
    """Writes the trace of a run in which every step is like the one before."""

    def __init__(self) -> None:
        self.lines = [b"[\n", event(MACHINE, 0, "M", args={"cores": 2})]
        self.cpu = dict.fromkeys(ROLES, 5.0)

    def steps(self, number: int, **left_out: str) -> None:
        for step in range(number):
            for kind, (seconds, *cpu) in PARTS.items():
                began = self.cpu
                self.cpu = {role: began[role] + more for role, more in zip(ROLES, cpu, strict=True)}
                args = {"cpu_began": self.told(began, left_out), "cpu_ended": self.told(self.cpu, left_out)}
                name = f"{kind} {step + (kind in ('stage', 'publish'))}"
                self.lines.append(event(name, 1, "X", ts=0.0, dur=seconds * 1e6, args=args))
            self.cpu = self.cpu | {DRIVER: self.cpu[DRIVER] + REST}

    def told(self, cpu: dict[str, float], left_out: dict[str, str]) -> dict[str, float]:
        return {role: seconds for role, seconds in cpu.items() if role not in left_out.values()}

    def work(self, num_answers: int) -> None:
        """Its engine computed all the time of its rollouts but ``ANSWER`` for each answer."""
        work, seconds = Work(), 1.0 * (num_answers // 128) - ANSWER * num_answers
        for step in (StepWork(1, 128, 11 * 16, 16, 11 * 16), StepWork(1, 128, 128, 0, 0), StepWork(1, 9, 9, 0, 0)):
            cost = step.num_passes * PASS + step.num_rows * ROW + step.num_tokens * TOKEN
            work.add(step, 0, cost)
        work.seconds, work.num_answers = seconds, num_answers
        self.lines.append(event(ENGINE_WORK, 0, "M", args=work.to_wire()))

    def write(self, folder: Path) -> None:
        record(folder, **{"perf/rollout_time": PARTS["rollout"][0], "perf/train_time": PARTS["step"][0]})
        (folder / "trace.json").write_bytes(b"".join(self.lines))


def recorded(folder: Path, steps: int = 9, **left_out: str) -> Any:
    recorder = Recorder()
    recorder.steps(steps, **left_out)
    recorder.work((steps - 1) * 128)
    recorder.write(folder)
    return recorded_workload(folder, resolutions(sources(folder))["sync"], 128)


def test_cpu_seconds_of_every_part_are_found_again(tmp_path: Path) -> None:
    workload = recorded(tmp_path)
    speeds = workload.speeds
    assert (speeds.decode_seconds, speeds.token_seconds) == pytest.approx((PASS, TOKEN))
    assert speeds.decode_seconds_per_sample == pytest.approx(ROW + TOKEN)
    assert (speeds.train_seconds, speeds.export_seconds, speeds.pause_seconds) == pytest.approx((0.6, 0.2, 0.1))
    assert (workload.prompt_tokens, workload.cores) == (11, 2)
    found = replace(workload.overheads, group_wait_seconds=0.0)
    expected = Overheads(0.16 / 16, 0.1 + REST, 0.01, 0.02, ANSWER, 0.0, 0.0, 0.1, 0.09, 0.08)
    assert [getattr(found, name) for name in Overheads.__slots__] == pytest.approx(
        [getattr(expected, name) for name in Overheads.__slots__], abs=1e-9
    )


def test_the_simulated_sync_step_is_as_long_as_the_recorded_one(tmp_path: Path) -> None:
    workload = recorded(tmp_path)
    forecast = simulate(resolutions(sources(tmp_path))["sync"], workload, num_engines=1, num_steps=12)
    assert forecast.step_seconds == pytest.approx(sum(seconds for seconds, *_ in PARTS.values()) + REST, rel=0.02)


@pytest.mark.parametrize(("steps", "left_out"), [(9, {"role": ENGINES}), (9, {"role": POLICY}), (LEAST_STEPS - 1, {})])
def test_a_trace_that_says_too_little_leaves_the_clock(tmp_path: Path, steps: int, left_out: dict[str, str]) -> None:
    workload = recorded(tmp_path, steps, **left_out)
    assert (workload.cores, workload.speeds.token_seconds, workload.overheads) == (None, None, Overheads())
    assert workload.speeds.train_seconds == PARTS["step"][0]


def test_only_the_last_start_of_a_resumed_run_counts(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.steps(3, role=ENGINES)
    recorder.lines.append(event(MACHINE, 0, "M", args={"cores": 7}))
    recorder.cpu = dict.fromkeys(ROLES, 0.0)
    recorder.steps(9)
    recorder.lines.append(b'{"name":"step 9","ph"')
    recorder.write(tmp_path)
    trace = read_trace(tmp_path / "trace.json")
    assert (trace.cores, len(trace.spans["step"])) == (7, 9)
    assert trace.cpu("step", POLICY) == pytest.approx(0.6)
