"""Simulated runs against what can be worked out on paper, and the command as a user calls it."""

import asyncio
import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.config.resolve import resolve
from miles.config.sources import FlagValue, Sources
from miles.errors import ConfigError
from miles.simulation.cores import Cores
from miles.simulation.engines import SimulatedEngine
from miles.simulation.fleet import SimulatedFleet
from miles.simulation.recorded import recorded_workload
from miles.simulation.schedules import best_split, flags_for, resolutions
from miles.simulation.simulate import Forecast, simulate
from miles.simulation.virtual_time import VirtualClock, run_virtual
from miles.simulation.workload import Overheads, Speeds, Workload, from_histogram, parse_lengths

pytestmark = pytest.mark.e2e
LEAST_DECODE = 1.0


def sources(folder: Path, **values: str) -> Sources:
    flags = {name: FlagValue(value, "--" + name.replace("_", "-")) for name, value in values.items()}
    return Sources(flags, preset="reverse", environ={}, cwd=folder)


def forecasts(folder: Path, workload: Workload, *, steps: int = 20, **values: str) -> dict[str, Forecast]:
    found = resolutions(sources(folder, rollout_max_response_len="200", **values))
    return {name: simulate(each, workload, num_engines=1, num_steps=steps) for name, each in found.items()}


def constant(train_seconds: float, *, slots: int = 128, pause: float = 0.0, export: float = 0.0) -> Workload:
    """128 answers of 10 tokens in 10 s, trained in ``train_seconds``."""
    speeds = Speeds(LEAST_DECODE, 0.0, train_seconds, 1280.0, export, pause)
    return Workload(lambda rng: 10, speeds, slots, 200)


def test_the_schedules_cost_what_they_cost_on_paper(tmp_path: Path) -> None:
    found = forecasts(tmp_path, constant(6.0, export=0.5, pause=0.25))
    assert found["sync"].step_seconds == pytest.approx(10 + 6 + 0.75)
    assert found["one_step_off"].step_seconds == pytest.approx(10 + 0.75)
    assert found["fully_async"].step_seconds == pytest.approx(10.25, rel=0.05)
    assert found["sync"].policy_idle == pytest.approx(1 - 6 / 16.75)
    assert (found["sync"].max_staleness, found["one_step_off"].max_staleness) == (0, 1)
    assert 0 < found["fully_async"].max_staleness <= 4


def test_a_slow_policy_is_never_idle_when_nothing_waits_for_it(tmp_path: Path) -> None:
    found = forecasts(tmp_path, constant(30.0))
    assert found["fully_async"].step_seconds == pytest.approx(30.0)
    assert found["fully_async"].policy_idle < 0.05 < found["sync"].policy_idle
    assert found["one_step_off"].step_seconds == pytest.approx(30.0)


def test_half_the_slots_take_twice_the_time(tmp_path: Path) -> None:
    assert forecasts(tmp_path, constant(0.0, slots=64))["sync"].step_seconds == pytest.approx(20.0)


def test_what_each_control_gives_up_on_a_long_tail(tmp_path: Path) -> None:
    tail = Workload(lambda rng: 150 if rng.random() < 0.01 else 10, Speeds(1.0, 0.0, 8.0, 1280.0), 64, 200)
    found = {
        control: forecasts(tmp_path, tail, max_weight_staleness="1", staleness_control=control)["fully_async"]
        for control in ("pace", "mask", "filter")
    }
    assert (found["pace"].discarded_groups, found["pace"].masked_share) == (0, 0)
    assert found["mask"].discarded_groups == 0 < found["mask"].masked_share
    assert found["filter"].discarded_groups > 0 == found["filter"].masked_share
    assert found["mask"].step_seconds < found["pace"].step_seconds


def test_one_and_the_same_simulation_gives_the_same_numbers(tmp_path: Path) -> None:
    tail = Workload(parse_lengths("lognormal:20,0.8"), Speeds(0.1, 0.001, 3.0, 3000.0, 0.1, 0.1), 64, 200)
    assert forecasts(tmp_path, tail, steps=8) == forecasts(tmp_path, tail, steps=8)


def test_the_best_split_has_more_engines_when_decoding_is_slow(tmp_path: Path) -> None:
    fully_async = resolutions(sources(tmp_path, rollout_max_response_len="200"))["fully_async"]
    slow_decode = best_split(fully_async, constant(1.0, slots=16), accelerators=4, num_steps=12)
    slow_train = best_split(fully_async, constant(300.0), accelerators=4, num_steps=12)
    assert (slow_decode.num_ranks, slow_decode.num_engines) == (1, 3)
    assert (slow_train.num_ranks, slow_train.num_engines) == (3, 1)


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 40)), min_size=1, max_size=12),
    st.integers(1, 4), st.floats(0, 50), st.booleans(), st.sampled_from([None, 0.0, 0.1]), st.sampled_from([1, None]),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_an_engine_decodes_every_token_once(
    arrivals: list[tuple[float, int]], slots: int, pause_at: float, retracts: bool, token_seconds: float | None, cores: int | None
) -> None:
    """Whatever arrives when, and through a pause with an update: spans cover the answer, no step is taken while paused."""

    async def main() -> None:
        clock = VirtualClock()
        speeds = Speeds(1.0, 0.0, 0.0, 1.0, token_seconds=token_seconds)
        engine = SimulatedEngine(clock, Cores(cores), replace(constant(0.0, slots=slots), speeds=speeds, prompt_tokens=3))
        running = asyncio.ensure_future(engine.run())

        async def ask(moment: float, length: int) -> None:
            await clock.sleep(moment)
            spans = await engine.generate(length, length)
            assert (spans[0].start, spans[-1].end) == (0, length)
            assert all(left.end == right.start for left, right in itertools.pairwise(spans))
            assert clock.now() >= moment + length - 1e-6

        async def update() -> None:
            await clock.sleep(pause_at)
            await engine.pause()
            before = engine.slot_steps
            await engine.take_weights(5.0)
            assert engine.slot_steps == before
            engine.go_on(1, retracts=retracts)

        await asyncio.gather(update(), *(ask(*arrival) for arrival in arrivals))
        running.cancel()
        assert engine.slot_steps == sum(length for _, length in arrivals)
        assert engine.busy_seconds <= clock.now() + 1e-6
        assert engine.is_empty

    run_virtual(main())


def test_retracted_samples_are_computed_again_with_their_prompt_once() -> None:
    """4 samples of one prompt of 10 tokens, 1 s a token: 10 s of prefill, 4 s a step; after 3 tokens each 10 + 4 · 3 s again."""

    async def main() -> float:
        clock = VirtualClock()
        workload = Workload(lambda rng: 5, Speeds(0.0, 1.0, 0.0, 1.0, token_seconds=1.0), 4, 200, prompt_tokens=10)
        fleet = SimulatedFleet(clock, Cores(), workload, 1)
        fleet.start()

        async def update() -> None:
            await clock.sleep(10 + 2 * 4 - 1)
            await fleet.pause()
            fleet.go_on(1, retracts=True)

        answers, _ = await asyncio.gather(fleet.generate([5] * 4, together=True), update())
        await fleet.close()
        assert [[tuple(span) for span in spans] for spans in answers] == [[(0, 0, 3), (1, 3, 5)]] * 4
        return clock.now()

    assert run_virtual(main()) == pytest.approx(10 + 2 * 4 + (10 + 4 * 3) + 4)


def test_updates_in_place_compute_nothing_again(tmp_path: Path) -> None:
    speeds = Speeds(0.1, 0.1, 6.0, 1280.0, pause_seconds=0.25, token_seconds=0.1)
    workload = replace(constant(6.0), speeds=speeds, prompt_tokens=10)
    found = {
        mode: forecasts(tmp_path, workload, pause_generation_mode=mode)["fully_async"].step_seconds
        for mode in ("retract", "in_place")
    }
    assert found["retract"] > 1.05 * found["in_place"]


def test_as_many_cores_as_processes_change_nothing(tmp_path: Path) -> None:
    overheads = Overheads(0.2, 0.3, 0.1, 0.1, 0.01)
    workload = replace(constant(6.0, export=0.5, pause=0.25), overheads=overheads)
    one, three, own = (forecasts(tmp_path, replace(workload, cores=cores), steps=8) for cores in (1, 3, None))
    assert own == three
    assert one["fully_async"].step_seconds > 1.2 * own["fully_async"].step_seconds


def test_on_one_core_nothing_overlaps(tmp_path: Path) -> None:
    found = forecasts(tmp_path, replace(constant(6.0), cores=1))
    assert [found[name].step_seconds for name in found] == pytest.approx([16.0] * 3, rel=0.05)


@pytest.mark.parametrize(("text", "low", "high"), [
    ("constant:7", 7, 7), ("uniform:3,5", 3, 5), ("lognormal:100,0.1", 50, 200),
])  # fmt: skip
def test_lengths_by_hand(text: str, low: int, high: int) -> None:
    draw, rng = parse_lengths(text), random.Random(1)
    assert all(low <= draw(rng) <= high for _ in range(200))


@pytest.mark.parametrize("text", ["", "constant", "constant:x", "uniform:5,3", "lognormal:100", "pareto:1,2", "constant:0"])
def test_lengths_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="names no distribution.*lognormal:MEDIAN,SIGMA"):
        parse_lengths(text)


def test_a_histogram_keeps_the_mean() -> None:
    draw, rng = from_histogram({4: 50, 8: 50}, 9.0), random.Random(2)
    assert sum(draw(rng) for _ in range(4000)) / 4000 == pytest.approx(9.0, rel=0.05)


def test_each_schedule_gets_the_options_it_has() -> None:
    flags = {
        name: FlagValue("1", "--x") for name in ("lr", "max_weight_staleness", "update_weights_interval", "colocate", "lerning")
    }
    assert set(flags_for("sync", flags)) == {"lr", "colocate", "lerning"}
    assert set(flags_for("one_step_off", flags)) == {"lr", "update_weights_interval", "lerning"}
    assert set(flags_for("fully_async", flags)) == {
        "lr", "update_weights_interval", "max_weight_staleness", "lerning", "fully_async",
    }  # fmt: skip


def record(folder: Path, **changes: float) -> None:
    row = {
        "perf/train_time": 3.0, "perf/rollout_time": 2.0, "perf/update_weights_time": 0.5, "perf/engines_paused_time": 0.2,
        "rollout/num_tokens": 640.0, "rollout/response_len/mean": 5.0, "rollout/kept/response_len/4": 128,
        "rollout/staleness/max": 0.0,
    }  # fmt: skip
    (folder / "metrics.jsonl").write_bytes(
        b"".join(orjson.dumps(row | changes, option=orjson.OPT_APPEND_NEWLINE) for _ in range(8))
    )


def test_a_recorded_run_is_simulated_as_it_was(tmp_path: Path) -> None:
    record(tmp_path)
    sync = resolutions(sources(tmp_path))["sync"]
    workload = recorded_workload(tmp_path, sync, 128)
    forecast = simulate(sync, workload, num_engines=1, num_steps=20)
    assert forecast.step_seconds == pytest.approx(2.0 + 3.0 + 0.5, rel=0.05)


@pytest.mark.parametrize(("changes", "words"), [
    ({"rollout/staleness/max": 1.0}, "no synchronous run"),
    ({"rollout/fully_async/queue_size": 1.0}, "no synchronous run"),
    (None, "0 trained rollouts"),
])  # fmt: skip
def test_a_run_that_says_too_little_is_refused(tmp_path: Path, changes: dict[str, float] | None, words: str) -> None:
    if changes is not None:
        record(tmp_path, **changes)
    with pytest.raises(ConfigError, match=words):
        recorded_workload(tmp_path, resolutions(sources(tmp_path))["sync"], 128)


def test_the_command_prints_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    from miles_cli.invocation import Typed
    from miles_cli.simulating import Asked, simulate_command

    asked = Asked(None, "constant:6", 1.0, 0.1, None, 3, 6)
    simulate_command(Typed({}), "reverse", None, asked, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[:4]] == ["schedule", "sync", "one step off", "fully async"]
    assert "of 3 accelerators" in lines[4]
    simulate_command(Typed({}), "reverse", None, asked, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [row["schedule"] for row in found["schedules"]] == ["sync", "one_step_off", "fully_async"]
    with pytest.raises(ConfigError, match="lengths.*no recorded run"):
        simulate_command(Typed({}), "reverse", None, Asked(None, None, 1.0, None, None, None, 6), as_json=True)


def test_continued_answers_waste_no_token(tmp_path: Path) -> None:
    """Over-sampling alone throws away what the stragglers have; with ``partial_rollout`` they go on in the next rollout."""
    lengths = Workload(parse_lengths("lognormal:40,1"), Speeds(1.0, 0.0, 1.0, 1280.0), 256, 200)
    more = {"over_sampling_batch_size": "32", "off_policy_correction": "tis"}
    plain = forecasts(tmp_path, lengths, steps=40)["sync"]
    asked = (sources(tmp_path, rollout_max_response_len="200", **more, **so) for so in ({"partial_rollout": "true"}, {}))
    kept, lost = (simulate(resolve("train", each), lengths, num_engines=1, num_steps=40) for each in asked)
    assert kept.tokens_per_second > 1.2 * max(lost.tokens_per_second, plain.tokens_per_second)
    assert kept.max_staleness > 0 == lost.max_staleness
