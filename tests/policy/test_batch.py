"""The columns say what the rollout said; what does not fit together is refused by name."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.errors import NotFiniteError, PolicyError
from miles.policy.batch import refuse_what_is_no_number
from miles.types import VersionSpan
from tests.policy.builders import batch_of, random_rollout, rollout, sample

pytestmark = pytest.mark.unit


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_columns_hold_every_sample(seed):
    made = random_rollout(seed)
    batch = batch_of(made)
    assert batch.num_samples == len(made.samples)
    for number, one in enumerate(made.samples):
        start, end = batch.response_offsets[number : number + 2]
        prompt = slice(*batch.prompt_offsets[batch.prompt_of[number] : batch.prompt_of[number] + 2])
        assert tuple(batch.prompt_ids[prompt]) == one.prompt_ids
        assert tuple(batch.response_ids[start:end]) == one.response_ids
        assert tuple(batch.logprobs[start:end]) == one.logprobs
        assert batch.versions[start:end].tolist() == [span.version for span in one.versions for _ in range(span.start, span.end)]
        assert tuple(batch.trained[start:end]) == one.loss_mask
        assert batch.group_of[number] == one.group_index
        assert (batch.rewards[number] if batch.scored[number] else None) == one.reward
        assert batch.trained_lengths[number] == sum(one.loss_mask)
        last = max((place for place, trained in enumerate(one.loss_mask) if trained), default=0)
        assert batch.fed_lengths[number] == last


def test_a_prompt_is_stored_once_per_group():
    batch = batch_of(rollout([[sample(0, i, (1, 2), (3,)) for i in range(8)], [sample(1, 0, (1, 2), (3,))]]))
    assert batch.prompt_offsets.tolist() == [0, 2, 4]


def test_a_pickled_batch_is_the_batch():
    batch = batch_of(random_rollout(1))
    back = pickle.loads(pickle.dumps(batch))
    for name in batch.__slots__:
        np.testing.assert_array_equal(getattr(back, name), getattr(batch, name))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logprobs": (-1.0,)}, "2 response tokens but 1 log-probs"),
        ({"loss_mask": (1, 1, 1)}, "3 loss-mask entries"),
        ({"versions": (VersionSpan(0, 0, 1),)}, "do not cover the 2 response tokens"),
        ({"versions": (VersionSpan(0, 0, 1), VersionSpan(1, 0, 2))}, "do not cover"),
        ({"versions": ()}, "do not cover"),
    ],
)
def test_a_bad_sample_is_named(changes, words):
    with pytest.raises(PolicyError, match=f"rollout 5, group 0, sample 3: .*{words}"):
        batch_of(rollout([[sample(0, 3, (1,), (2, 3), **changes)]], 5))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logprobs": (-1.0, float("nan"))}, "a log-prob from the engine is not finite"),
        ({"logprobs": (float("-inf"), -1.0)}, "a log-prob from the engine is not finite"),
        ({"reward": float("nan")}, "the reward is nan"),
        ({"reward": float("inf")}, "the reward is inf"),
    ],
)
@pytest.mark.parametrize("place", range(4))
def test_what_is_no_number_is_named(place, changes, words):
    groups = [[sample(g, i, (1,), (2, 3), **(changes if 2 * g + i == place else {})) for i in range(2)] for g in range(2)]
    made = rollout(groups, 5)
    with pytest.raises(NotFiniteError, match=f"rollout 5, group {place // 2}, sample {place % 2}: .*{words}"):
        refuse_what_is_no_number(made, batch_of(made))


@given(st.integers(0, 2**16), st.sampled_from([None, "reward", "logprobs"]), st.data())
def test_a_rollout_is_refused_just_where_something_is_no_number(seed, spoiled, data):
    made = random_rollout(seed)
    if spoiled is not None:
        fit = [one for one in made.samples if one.response_ids]
        bad = data.draw(st.sampled_from(fit))
        worse = {"reward": math.nan, "logprobs": (*bad.logprobs[:-1], math.inf)}[spoiled]
        groups = [
            replace(group, samples=tuple(replace(one, **{spoiled: worse}) if one is bad else one for one in group.samples))
            for group in made.groups
        ]
        made = replace(made, groups=tuple(groups))
    try:
        refuse_what_is_no_number(made, batch_of(made))
        said = None
    except NotFiniteError as error:
        said = str(error)
    wanted = None if spoiled is None else f"group {bad.group_index}, sample {bad.sample_index}: "
    assert (said is None) == (wanted is None)
    assert wanted is None or wanted in said


def test_a_prompt_without_tokens_is_refused():
    with pytest.raises(PolicyError, match="the prompt has no tokens"):
        batch_of(rollout([[sample(0, 0, (), (2,))]]))
