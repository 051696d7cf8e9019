"""`mask` and `filter` on virtual time: the bound of every trained token, what is given up, and that nothing else is."""

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from miles.config.options.rollout import FullyAsync
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.fully_async import FullyAsyncRolloutFn
from miles.rollout.histograms import LengthWatch, length_histogram
from miles.rollout.masking import masked_metrics, without_old_tokens
from miles.simulation.virtual_time import run_virtual
from miles.types import Group, Prompt, Rollout, VersionSpan, staleness

from .simulated import given, group, sample

pytestmark = pytest.mark.unit
QUIET = 2e9


@dataclass(frozen=True)
class Scenario:
    seed: int
    batch_size: int
    interval: int
    bound: int
    steps: int
    handler: str = "retry"
    capacity: float | None = None

    def options(self, control: str) -> FullyAsync:
        return FullyAsync(
            update_weights_interval=self.interval,
            max_weight_staleness=self.bound,
            staleness_control=control,
            async_unused_samples_handler=self.handler,
            async_data_buffer_capacity_factor=self.capacity,
            no_progress_seconds=QUIET,
        )


SCENARIOS = st.builds(
    Scenario,
    seed=st.integers(0, 10**9),
    batch_size=st.integers(1, 5),
    interval=st.integers(1, 3),
    bound=st.integers(0, 3),
    steps=st.integers(1, 12),
    handler=st.sampled_from(["retry", "drop"]),
    capacity=st.sampled_from([None, 1.0, 2.5, 8.0]),
)


class SpanningGenerator:
    """Answers of one token a second, each under the version published then; a few are very long."""

    def __init__(self, seed: int) -> None:
        self.seed, self.version = seed, 0

    async def __call__(self, asked: Prompt, version_admitted: int) -> Group:
        rng = random.Random(f"{self.seed}/{asked.index}")
        length = rng.choice([1, 2, 3, rng.randint(1, 40)])
        versions = []
        for _ in range(length):
            versions.append(max(self.version, version_admitted))
            await asyncio.sleep(1)
        spans = tuple(VersionSpan(version, place, place + 1) for place, version in enumerate(versions))
        columns: dict[str, Any] = {
            "response_ids": (7,) * length, "logprobs": (-0.5,) * length, "loss_mask": (1,) * length, "versions": spans,
        }  # fmt: skip
        return Group(asked, (sample(asked.index, 0, **columns), sample(asked.index, 1, **columns, reward=0.0)), version_admitted)


async def loop(setup: RolloutFnInput, scenario: Scenario, generator: SpanningGenerator) -> list[tuple[int, Rollout]]:
    fn, rng, version, made = FullyAsyncRolloutFn(setup), random.Random(scenario.seed), 0, []
    for rollout_id in range(scenario.steps):
        rollout = await fn(rollout_id, version)
        made.append((version, rollout))
        await asyncio.sleep(rng.choice([0.5, 3.0]))
        setup.ledger.mark_trained(rollout)
        if (rollout_id + 1) % scenario.interval == 0:
            version += 1
            generator.version = version
            fn.published(version)
    await fn.close()
    return made


def run(control: str, scenario: Scenario) -> tuple[list[tuple[int, Rollout]], RolloutFnInput]:
    generator = SpanningGenerator(scenario.seed)
    setup = given(generator, scenario.options(control), batch_size=scenario.batch_size, num_rollout=scenario.steps)
    return run_virtual(loop(setup, scenario, generator)), setup


def check_batches(made: list[tuple[int, Rollout]], scenario: Scenario) -> None:
    indices = [[group.index for group in rollout.groups] for _, rollout in made]
    assert all(len(batch) == scenario.batch_size and batch == sorted(batch) for batch in indices)
    assert len({index for batch in indices for index in batch}) == scenario.steps * scenario.batch_size


@for_all(SCENARIOS)
@settings(max_examples=120, deadline=None)
def test_mask_trains_no_token_beyond_the_bound_and_loses_no_group(scenario: Scenario) -> None:
    made, setup = run("mask", scenario)
    check_batches(made, scenario)
    for version, rollout in made:
        for answer in rollout.samples:
            ages = [version - span.version for span in answer.versions]
            assert [flag == 0 for flag in answer.loss_mask] == [age > scenario.bound for age in ages]
        share = 1 - sum(map(sum, (s.loss_mask for s in rollout.samples))) / sum(len(s.loss_mask) for s in rollout.samples)
        assert rollout.metrics["rollout/masked/share"] == pytest.approx(share)
    assert sum(setup.ledger.dropped().values()) == 0
    assert setup.ledger.issued == scenario.steps * scenario.batch_size, "nothing is sampled in vain"


def test_mask_waits_for_no_straggler() -> None:
    """Bound 1, batch 1: the straggler of version 0 is trained when it comes, its old tokens are not."""

    async def generate(asked: Prompt, version: int) -> Group:
        await asyncio.sleep(10 if asked.index == 1 else 1)
        return group(asked.index, version)

    setup = given(generate, Scenario(0, 1, 1, 1, 4).options("mask"), batch_size=1, num_rollout=4)
    made = run_virtual(loop(setup, Scenario(0, 1, 1, 1, 4), SpanningGenerator(0)))
    assert [[group.index for group in rollout.groups] for _, rollout in made] == [[0], [2], [3], [1]]
    assert [sum(s.loss_mask) for s in made[-1][1].samples] == [0, 0]


@for_all(SCENARIOS)
@settings(max_examples=120, deadline=None)
def test_filter_hands_out_fresh_groups_and_accounts_for_every_other(scenario: Scenario) -> None:
    made, setup = run("filter", scenario)
    check_batches(made, scenario)
    assert all(staleness(version, group) <= scenario.bound for version, rollout in made for group in rollout.groups)
    assert all(sum(s.loss_mask) == len(s.loss_mask) for _, rollout in made for s in rollout.samples)
    rejected = sum(rollout.metrics["rollout/rejected/num_groups"] for _, rollout in made)
    dropped = setup.ledger.dropped()
    assert rejected == sum(dropped.values()) + setup.ledger.num_retries
    if scenario.handler == "drop":
        assert setup.ledger.num_retries == 0
    counted = [
        value for _, rollout in made for key, value in rollout.metrics.items() if key.startswith("rollout/rejected/staleness/")
    ]
    assert sum(counted) == rejected


@for_all(SCENARIOS)
@settings(max_examples=60, deadline=None)
def test_pace_gives_nothing_up_where_the_others_do(scenario: Scenario) -> None:
    room = Scenario(**{**scenario.__dict__, "capacity": None})
    made, setup = run("pace", room)
    check_batches(made, room)
    assert all(staleness(version, group) <= room.bound for version, rollout in made for group in rollout.groups)
    assert all(sum(s.loss_mask) == len(s.loss_mask) for _, rollout in made for s in rollout.samples)
    assert setup.ledger.issued == room.steps * room.batch_size
    assert sum(rollout.metrics["rollout/rejected/num_groups"] for _, rollout in made) == 0


def test_masking_is_measured_by_quarter_of_the_answer() -> None:
    columns: dict[str, Any] = {"response_ids": (7,) * 8, "logprobs": (-0.5,) * 8, "loss_mask": (1,) * 8}
    spanning = sample(0, 0, versions=(VersionSpan(1, 0, 3), VersionSpan(4, 3, 8)), **columns)
    old = sample(0, 1)
    both = Group(group().prompt, (spanning, old), 0)
    assert masked_metrics([both], 4) == {
        "rollout/masked/share": pytest.approx(5 / 10),
        "rollout/masked/share/0-25": 1.0,
        "rollout/masked/share/25-50": pytest.approx(1 / 2),
        "rollout/masked/share/50-75": pytest.approx(1 / 3),
        "rollout/masked/share/75-100": 0.0,
        "rollout/masked/whole_samples": 0.5,
    }
    assert [answer.loss_mask for answer in without_old_tokens(both, 4).samples] == [(0, 0, 0, 1, 1, 1, 1, 1), (0, 0)]
    assert without_old_tokens(both, 0).samples[0] is spanning


def test_lengths_are_counted_by_powers_of_two() -> None:
    assert length_histogram("len", [0, 1, 2, 3, 4, 7, 8, 100]) == {
        "len/0": 1, "len/1": 1, "len/2": 2, "len/4": 2, "len/8": 1, "len/64": 1,
    }  # fmt: skip


@pytest.mark.parametrize(("kept", "discarded", "warns"), [
    ([10, 12] * 50, [20, 22] * 50, True),
    ([10, 12] * 50, [10, 12] * 50, False),
    ([10, 12] * 50, [20] * 10, False),
    ([1000, 1001] * 5000, [1010, 1011] * 5000, False),
])  # fmt: skip
def test_a_bias_in_length_is_said_once(kept: list[int], discarded: list[int], warns: bool) -> None:
    watch = LengthWatch()
    watch.kept.add(kept)
    watch.discarded.add(discarded)
    assert bool(watch.warning()) is warns
    assert watch.warning() == ""
