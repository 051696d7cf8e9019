"""Fully async on virtual time: the bound, the order, the limits, and no deadlock, over random schedules."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from miles.config.options.rollout import FullyAsync, SyncRollout
from miles.engines.client import EngineClient
from miles.engines.fleet import EngineFleet
from miles.engines.wire import Answer, GenerateRequest, SamplingParams
from miles.errors import RolloutError
from miles.rollout.buffer import PacedBuffer
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.fully_async import FullyAsyncRolloutFn
from miles.rollout.inference import InferenceRolloutFn
from miles.simulation.virtual_time import run_virtual
from miles.types import Group, Prompt, Rollout, staleness

from .simulated import SimulatedGenerator, given, group

pytestmark = pytest.mark.unit
SPREAD = "miles.rollout.filters:has_reward_spread"
QUIET = 2e9  # beyond the virtual loop's horizon, so that a deadlock is seen


@dataclass(frozen=True)
class Scenario:
    seed: int
    batch_size: int
    interval: int
    bound: int
    steps: int
    filters: bool
    abort_share: float
    train_seconds: float
    concurrency: float | None
    capacity_factor: float | None
    evaluates: bool

    def capacity(self) -> float | None:
        return None if self.capacity_factor is None else min(self.capacity_factor, float((self.bound + 1) * self.interval))

    def options(self) -> FullyAsync:
        limit = (self.bound + 1) * self.interval * self.batch_size * 2
        return FullyAsync(
            update_weights_interval=self.interval,
            max_weight_staleness=self.bound,
            dynamic_sampling_filter_path=SPREAD if self.filters else None,
            async_max_concurrent_samples=None if self.concurrency is None else max(2, round(self.concurrency * limit)),
            async_data_buffer_capacity_factor=self.capacity(),
            no_progress_seconds=QUIET,
        )


SCENARIOS = st.builds(
    Scenario,
    seed=st.integers(0, 10**9),
    batch_size=st.integers(1, 5),
    interval=st.integers(1, 3),
    bound=st.integers(0, 4),
    steps=st.integers(1, 12),
    filters=st.booleans(),
    abort_share=st.sampled_from([0.0, 0.15]),
    train_seconds=st.sampled_from([0.1, 1.0, 5.0]),
    concurrency=st.sampled_from([None, 0.1, 0.5, 1.2]),
    capacity_factor=st.sampled_from([None, 1.0, 1.5, 3.0]),
    evaluates=st.booleans(),
)


async def loop(fn: Any, setup: RolloutFnInput, scenario: Scenario) -> list[tuple[int, Rollout]]:
    """The fully async loop: take, train, publish, sometimes evaluate. Returns each rollout with the policy's version."""
    rng = random.Random(scenario.seed)
    version, made = setup.weight_version, []
    for rollout_id in range(setup.first_rollout_id, setup.derived.num_rollout):
        rollout = await fn(rollout_id, version)
        made.append((version, rollout))
        await asyncio.sleep(scenario.train_seconds * rng.random())
        setup.ledger.mark_trained(rollout)
        if (rollout_id + 1) % scenario.interval == 0:
            await asyncio.sleep(rng.random())
            version += 1
            fn.published(version)
        if scenario.evaluates and rollout_id % 2:
            await fn.pause()
            issued = setup.ledger.issued
            await asyncio.sleep(rng.choice([0.1, 50.0]))
            assert setup.ledger.issued == issued, "nothing starts during an evaluation"
            fn.resume()
    await fn.close()
    return made


@for_all(SCENARIOS)
@settings(max_examples=200, deadline=None)
def test_laws(scenario: Scenario) -> None:
    generator = SimulatedGenerator(scenario.seed, scenario.abort_share)
    setup = given(generator, scenario.options(), batch_size=scenario.batch_size, num_rollout=scenario.steps)
    limits = Limits(setup, scenario)
    made = run_virtual(loop(FullyAsyncRolloutFn(setup), setup, scenario))

    assert [rollout.rollout_id for _, rollout in made] == list(range(scenario.steps))
    for version, rollout in made:
        indices = [group.index for group in rollout.groups]
        assert len(indices) == scenario.batch_size
        assert indices == sorted(set(indices))
        lags = [staleness(version, group) for group in rollout.groups]
        assert 0 <= min(lags) <= max(lags) <= scenario.bound
        assert rollout.metrics["rollout/fully_async/max_staleness"] == max(lags)
        assert rollout.metrics["rollout/fully_async/sent_back"] == 0

    counts = setup.ledger.counts()
    assert counts["ledger/trained"] == scenario.steps * scenario.batch_size
    assert counts["ledger/issued"] == counts["ledger/trained"] + sum(setup.ledger.dropped().values()), "nothing is left over"
    assert counts["ledger/dropped/stale"] == 0
    trained = [group.index for _, rollout in made for group in rollout.groups]
    assert len(trained) == len(set(trained))
    limits.check(generator)


@dataclass
class Limits:
    """What capacity and concurrency allow, watched at every reservation."""

    setup: RolloutFnInput
    scenario: Scenario
    most_alive: int = 0

    def __post_init__(self) -> None:
        reserve = self.setup.ledger.reserve

        def watched() -> int:
            index = reserve()
            counts = self.setup.ledger.counts()
            self.most_alive = max(self.most_alive, int(counts["ledger/in_flight"] + counts["ledger/buffered"]))
            return index

        self.setup.ledger.reserve = watched  # type: ignore[method-assign]

    def check(self, generator: SimulatedGenerator) -> None:
        scenario, options = self.scenario, self.scenario.options()
        assert self.most_alive <= (scenario.bound + 1) * scenario.interval * scenario.batch_size
        if options.async_data_buffer_capacity_factor is not None:
            assert self.most_alive <= options.async_data_buffer_capacity_factor * scenario.batch_size
        if options.async_max_concurrent_samples is not None:
            assert generator.most_running * 2 <= options.async_max_concurrent_samples


@for_all(SCENARIOS)
@settings(max_examples=80, deadline=None)
def test_bound_zero_trains_on_what_sync_trains_on(scenario: Scenario) -> None:
    options = FullyAsync(
        max_weight_staleness=0,
        dynamic_sampling_filter_path=SPREAD if scenario.filters else None,
        async_max_concurrent_samples=scenario.options().async_max_concurrent_samples,
        no_progress_seconds=QUIET,
    )
    sync_options = SyncRollout(dynamic_sampling_filter_path=options.dynamic_sampling_filter_path, no_progress_seconds=QUIET)
    step_by_step = Scenario(**{**scenario.__dict__, "interval": 1, "bound": 0})
    sizes: Mapping[str, Any] = {"batch_size": scenario.batch_size, "num_rollout": scenario.steps}
    a = given(SimulatedGenerator(scenario.seed, scenario.abort_share), options, **sizes)
    b = given(SimulatedGenerator(scenario.seed, scenario.abort_share), sync_options, **sizes)
    ours = run_virtual(loop(FullyAsyncRolloutFn(a), a, step_by_step))
    theirs = run_virtual(loop(InferenceRolloutFn(b), b, step_by_step))
    for (version, rollout), (sync_version, sync_rollout) in zip(ours, theirs, strict=True):
        assert (version, rollout.groups) == (sync_version, sync_rollout.groups)
        assert rollout.metrics.items() >= sync_rollout.metrics.items()


@for_all(st.integers(0, 10**6), st.integers(0, 3), st.integers(0, 2), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_versions_off_schedule_send_groups_back_but_never_break_the_bound(
    seed: int, start: int, jump: int, batch_size: int
) -> None:
    """A policy that publishes more than it should: what can no longer be used in time starts again."""

    async def main(setup: RolloutFnInput) -> list[tuple[int, Rollout]]:
        fn, rng = FullyAsyncRolloutFn(setup), random.Random(seed)
        version, made = setup.weight_version, []
        for rollout_id in range(2, 10):
            rollout = await fn(rollout_id, version)
            made.append((version, rollout))
            await asyncio.sleep(rng.random() * 4)
            setup.ledger.mark_trained(rollout)
            version += 1 + (jump if rng.random() < 0.4 else 0)
            fn.published(version)
        await fn.close()
        return made

    options = FullyAsync(max_weight_staleness=2, no_progress_seconds=QUIET)
    setup = given(SimulatedGenerator(seed), options, batch_size=batch_size, first_rollout_id=2, weight_version=start)
    made = run_virtual(main(setup))
    assert all(0 <= staleness(version, group) <= 2 for version, rollout in made for group in rollout.groups)
    assert setup.ledger.counts()["ledger/trained"] == 8 * batch_size
    trained = [group.index for _, rollout in made for group in rollout.groups]
    assert sorted(trained) == list(range(8 * batch_size)), "no group is lost, none comes twice"
    if jump == 0:
        assert all(rollout.metrics["rollout/fully_async/sent_back"] == 0 for _, rollout in made)


def test_the_policy_waits_for_old_groups_rather_than_push_them_past_their_step() -> None:
    """Bound 1, batch 1: the straggler of version 0 must be in step 1, however many younger groups are finished."""
    began = {}

    async def generate(asked: Prompt, version: int) -> Group:
        began[asked.index] = asyncio.get_running_loop().time()
        await asyncio.sleep(100 if asked.index == 1 else 1)
        return group(asked.index, version)

    setup = given(generate, FullyAsync(max_weight_staleness=1, no_progress_seconds=QUIET), batch_size=1, num_rollout=4)
    scenario = Scenario(0, 1, 1, 1, 4, False, 0.0, 0.1, None, None, False)
    made = run_virtual(loop(FullyAsyncRolloutFn(setup), setup, scenario))
    assert [[group.index for group in rollout.groups] for _, rollout in made] == [[0], [1], [2], [3]]
    assert began[2] < 3, "younger groups start while the policy waits"


def test_versions_and_rollouts_only_grow() -> None:
    async def main(setup: RolloutFnInput) -> None:
        fn = FullyAsyncRolloutFn(setup)
        fn.published(2)
        with pytest.raises(RolloutError, match="1 was published after 2"):
            fn.published(1)
        with pytest.raises(RolloutError, match="rollout 3 was asked of a producer that is at step 0"):
            await fn(3, 2)

    run_virtual(main(given(SimulatedGenerator(1), FullyAsync())))


def test_another_schedule_is_refused() -> None:
    with pytest.raises(RolloutError, match="--fully-async"):
        FullyAsyncRolloutFn(given(SimulatedGenerator(1), SyncRollout()))


class NewestFirst(PacedBuffer):
    """A user's buffer with another order."""

    def take(self, num_groups: int) -> list[Group]:
        kept = self.groups()
        self.__init__()  # type: ignore[misc]
        for left in kept[:-num_groups]:
            self.put(left)
        return kept[-num_groups:]


@for_all(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_a_buffer_of_ones_own_may_reorder_but_never_breaks_the_bound(seed: int) -> None:
    options = FullyAsync(
        max_weight_staleness=1, no_progress_seconds=QUIET, custom_async_data_buffer_path=f"{__name__}:NewestFirst"
    )
    setup = given(SimulatedGenerator(seed), options)
    scenario = Scenario(seed, 2, 1, 1, 10, False, 0.0, 1.0, None, None, False)
    made = run_virtual(loop(FullyAsyncRolloutFn(setup), setup, scenario))
    assert all(staleness(version, group) <= 1 for version, rollout in made for group in rollout.groups)


class SlowClient(EngineClient):
    """An engine whose answers take a second each, whatever else it does; remembers the most it held."""

    def __init__(self) -> None:
        super().__init__("http://slow")
        self.num_held = self.most_held = 0

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        self.num_held += len(requests)
        self.most_held = max(self.most_held, self.num_held)
        await asyncio.sleep(1)
        self.num_held -= len(requests)
        return []


def test_nothing_is_admitted_while_requests_wait_for_room_at_the_engines() -> None:
    async def run() -> None:
        client = SlowClient()
        fleet = EngineFleet([client], max_in_flight=6)

        async def generate(asked: Prompt, version: int) -> Group:
            requests = [GenerateRequest(f"{asked.index}-{place}", (1,), SamplingParams(1)) for place in range(2)]
            await fleet.generate(requests)
            return group(asked.index, version)

        setup = given(generate, FullyAsync(max_weight_staleness=20, no_progress_seconds=QUIET), num_rollout=8, room=fleet)
        fn = FullyAsyncRolloutFn(setup)
        for rollout_id in range(8):
            setup.ledger.mark_trained(await fn(rollout_id, 0))
            assert setup.ledger.counts()["ledger/in_flight"] <= 3 + 2, "three groups at the engine, and one or two in line"
        assert client.most_held == 6, "the engine was kept full"
        await fn.close()

    run_virtual(run())
