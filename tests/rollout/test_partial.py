"""Partial rollout on virtual time: no token is lost or sampled twice, each keeps its version, also over a restart."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from miles.clock import Clock
from miles.config.options.rollout import SyncRollout
from miles.engines.wire import Answer, GenerateRequest, SamplingParams
from miles.rollout.contracts import RolloutFnInput
from miles.rollout.generate import GenerateSettings, SingleTurnGroupGenerator
from miles.rollout.group_file import read_groups, write_groups
from miles.rollout.inference import InferenceRolloutFn
from miles.rollout.partial import joined
from miles.simulation.virtual_time import VirtualClock, run_virtual
from miles.types import Group, Prompt, Rollout, Sample, SampleStatus, VersionSpan

from .simulated import CheckedLedger, LetterTokenizer, given, sample, source

pytestmark = pytest.mark.unit
PROMPT_TOKENS = 2
PLACES = 2
LONGEST = 60


def length_of(row: int, place: int, seed: int) -> int:
    rng = random.Random(f"{seed}/{row}/{place}")
    return rng.choice([1, 3, rng.randint(1, LONGEST)])


def token_at(row: int, place: int, position: int) -> int:
    return 70 + (row * 5 + place * 3 + position) % 50


@dataclass
class TokenEngine:
    """One token a second for every request; what stands at a position does not depend on where the request began."""

    seed: int
    version: int = 0
    sampled: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    stopped: dict[str, asyncio.Event] = field(default_factory=dict)

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        return list(await asyncio.gather(*(self._answer(request) for request in requests)))

    async def abort(self, rids: Sequence[str]) -> None:
        for rid in rids:
            if rid in self.stopped:
                self.stopped[rid].set()

    async def _answer(self, request: GenerateRequest) -> Answer:
        row, place = request.input_ids[1], int(request.rid.rsplit("-", 1)[1])
        position, end = len(request.input_ids) - PROMPT_TOKENS, length_of(row, place, self.seed)
        stop = self.stopped[request.rid] = asyncio.Event()
        ids: list[int] = []
        spans: list[VersionSpan] = []
        while position < end and not stop.is_set():
            ids.append(token_at(row, place, position))
            spans.append(VersionSpan(self.version, len(ids) - 1, len(ids)))
            self.sampled[row, place, position] += 1
            position += 1
            await asyncio.sleep(1)
        reason: Any = "stop" if position >= end else "abort"
        return Answer(request.rid, tuple(ids), tuple(-float(token) for token in ids), reason, tuple(spans))


@dataclass
class SlowReward:
    """A number, after a while."""

    seconds: float

    async def score(self, prompt: Prompt, samples: Sequence[Sample]) -> tuple[Sample, ...]:
        await asyncio.sleep(self.seconds)
        return tuple(replace(one, reward=float(one.sample_index)) for one in samples)

    async def close(self) -> None:
        """Nothing was started."""


@dataclass(frozen=True)
class Scenario:
    seed: int
    batch_size: int
    more: int
    rollouts: int
    masks: bool
    granularity: str
    reward_seconds: float
    restarts: bool

    def options(self) -> SyncRollout:
        return SyncRollout(
            over_sampling_batch_size=self.batch_size + self.more,
            partial_rollout=True,
            mask_offpolicy_in_partial_rollout=self.masks,
            rollout_submission_granularity=self.granularity,
            rollout_timeout_seconds=10_000,
            no_progress_seconds=2e9,
        )


SCENARIOS = st.builds(
    Scenario,
    seed=st.integers(0, 10**6),
    batch_size=st.integers(1, 4),
    more=st.integers(0, 4),
    rollouts=st.integers(1, 8),
    masks=st.booleans(),
    granularity=st.sampled_from(["group", "sample"]),
    reward_seconds=st.sampled_from([0.0, 0.5, 7.0]),
    restarts=st.booleans(),
)


def setup_for(scenario: Scenario, engine: TokenEngine, ledger: CheckedLedger, clock: Clock, done: int) -> RolloutFnInput:
    how = GenerateSettings(SamplingParams(LONGEST), PLACES, 256, 10_000, 0, granularity=scenario.granularity)  # type: ignore[arg-type]
    generator = SingleTurnGroupGenerator(engine, LetterTokenizer(), SlowReward(scenario.reward_seconds), how)
    return given(
        generator, scenario.options(), batch_size=scenario.batch_size, clock=clock, ledger=ledger, first_rollout_id=done,
        weight_version=done, interrupt=generator.interrupt, source=source(1000),
    )  # fmt: skip


async def loop(scenario: Scenario, engine: TokenEngine, folder: Path) -> tuple[list[Rollout], CheckedLedger]:
    """Rollout, step, publish; with ``restarts`` everything is written, forgotten and read after every step."""
    clock, ledger, made = VirtualClock(), CheckedLedger(), list[Rollout]()
    setup = setup_for(scenario, engine, ledger, clock, 0)
    fn = InferenceRolloutFn(setup)
    for rollout_id in range(scenario.rollouts):
        made.append(await fn(rollout_id, rollout_id))
        ledger.mark_trained(made[-1])
        engine.version = rollout_id + 1
        fn.published(engine.version)
        if scenario.restarts:
            digest = write_groups(folder / "groups", ledger.kept())
            ledger = CheckedLedger.restore(ledger.snapshot(), read_groups(folder / "groups", digest, setup.source))
            setup = setup_for(scenario, engine, ledger, clock, rollout_id + 1)
            fn = InferenceRolloutFn(setup)
    return made, ledger


@for_all(SCENARIOS)
@settings(max_examples=60, deadline=None)
def test_every_answer_is_whole_and_no_token_is_sampled_twice(
    tmp_path_factory: pytest.TempPathFactory, scenario: Scenario
) -> None:
    engine = TokenEngine(scenario.seed)
    made, ledger = run_virtual(loop(scenario, engine, tmp_path_factory.mktemp("groups")))
    trained = [group for rollout in made for group in rollout.groups]
    assert all(len(rollout.groups) == scenario.batch_size for rollout in made)
    assert len({group.index for group in trained}) == len(trained)
    for rollout in made:
        for answer in rollout.samples:
            check_answer(answer, scenario, rollout)
    kept = [answer for group in (*trained, *ledger.kept()) for answer in group.samples]
    assert max(engine.sampled.values()) == 1, "no token is sampled twice"
    assert sum(len(answer.response_ids) for answer in kept) == engine.sampled.total(), "none is lost"


def check_answer(answer: Sample, scenario: Scenario, rollout: Rollout) -> None:
    row, place, length = answer.prompt_ids[1], answer.sample_index, len(answer.response_ids)
    assert length == length_of(row, place, scenario.seed)
    assert answer.response_ids == tuple(token_at(row, place, position) for position in range(length))
    assert answer.logprobs == tuple(-float(token) for token in answer.response_ids)
    assert [span.start for span in answer.versions] == [0, *(span.end for span in answer.versions[:-1])]
    assert answer.versions[-1].end == length and answer.versions[-1].version <= rollout.rollout_id
    versions = [span.version for span in answer.versions for _ in range(span.start, span.end)]
    old = [version < rollout.rollout_id for version in versions]
    assert answer.loss_mask == tuple(int(not (scenario.masks and flag)) for flag in old)
    assert answer.text == "".join(map(chr, answer.response_ids)), "decoded as a whole"
    assert answer.reward == float(place)


def test_long_answers_are_trained_a_rollout_later_and_not_begun_anew(tmp_path: Path) -> None:
    """Group 0 of this seed takes long, group 1 does not."""

    def longest(seed: int, row: int) -> int:
        return max(length_of(row, place, seed) for place in range(PLACES))

    seed = next(seed for seed in range(500) if longest(seed, 0) > 20 and longest(seed, 1) < 4)
    scenario = Scenario(seed, 1, 1, 2, False, "group", 0.0, False)
    engine = TokenEngine(seed)
    made, _ = run_virtual(loop(scenario, engine, tmp_path))
    assert [[group.index for group in rollout.groups] for rollout in made] == [[1], [0]]
    assert made[0].metrics["rollout/partial/num_groups"] == 1
    assert made[1].metrics["rollout/partial/old_tokens_share"] > 0
    assert made[1].groups[0].version_admitted == 0
    assert made[1].metrics["rollout/spans_versions_share"] > 0


def test_joined_spans_of_one_version_are_one() -> None:
    begun = sample(versions=(VersionSpan(1, 0, 1), VersionSpan(2, 1, 2)), status=SampleStatus.ABORTED, reward=None)
    whole = joined(begun, sample(versions=(VersionSpan(2, 0, 1), VersionSpan(3, 1, 2)), text="end"))
    assert whole.versions == (VersionSpan(1, 0, 1), VersionSpan(2, 1, 3), VersionSpan(3, 3, 4))
    assert (whole.status, whole.text, len(whole.response_ids)) == (SampleStatus.COMPLETED, "end", 4)


def test_a_failure_while_it_goes_on_keeps_what_was_there_before() -> None:
    ledger = CheckedLedger()
    begun = Group(source().reserve(ledger), (sample(status=SampleStatus.ABORTED, reward=None),), 0)
    ledger.suspend(begun)
    assert (ledger.reserve(), ledger.unfinished(0)) == (0, begun)
    ledger.put_back(0)
    assert ledger.unfinished(0) == begun
    ledger.reserve()
    ledger.retry(0)
    assert ledger.unfinished(0) is None, "a group that failed by itself begins anew"
