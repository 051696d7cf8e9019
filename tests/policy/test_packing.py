"""Laws of rows and micro-batches: everything once, within limits, balanced, the same every time."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.policy.packing import Limits, Row, plan_micro_batches, plan_rows, share_rows

pytestmark = pytest.mark.unit

LIMITS = st.builds(Limits, st.none() | st.integers(1, 60), st.none() | st.integers(1, 5))
LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=9)
SAMPLES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), min_size=1, max_size=16)  # prompt, tokens fed
PROMPT_LENGTHS = np.array([1, 5, 12, 40])


def rows_of(samples, limits, hidden_size=16):
    """Rows of all samples, each given as (prompt, tokens fed)."""
    prompts, fed = (np.array(column) for column in zip(*samples, strict=True))
    return plan_rows(range(len(samples)), prompts, PROMPT_LENGTHS, fed, limits, hidden_size)


def size(part):
    """Tokens of a forward pass, padding included."""
    return len(part) * max(row.length for row in part)


def plain(lengths):
    """Rows of one sample each."""
    return [Row(0, (number,), length) for number, length in enumerate(lengths)]


@given(SAMPLES, LIMITS, st.sampled_from([None, 1, 16, 4096]))
@settings(max_examples=60, deadline=None)
def test_every_sample_is_in_one_row_of_its_prompt(samples, limits, hidden_size):
    rows = rows_of(samples, limits, hidden_size)
    assert sorted(sample for row in rows for sample in row.samples) == list(range(len(samples)))
    for row in rows:
        assert all(samples[sample][0] == row.prompt for sample in row.samples)
        assert row.length == PROMPT_LENGTHS[row.prompt] + sum(samples[sample][1] for sample in row.samples)
        assert len(row.samples) == 1 or (hidden_size is not None and limits.hold(row.length, len(row.samples)))


@given(SAMPLES, LIMITS)
@settings(max_examples=60, deadline=None)
def test_micro_batches_hold_every_row_once_within_the_limits(samples, limits):
    rows = rows_of(samples, limits)
    parts = plan_micro_batches(rows, limits)
    assert sorted((row for part in parts for row in part), key=rows.index) == rows
    for part in parts:
        assert len(part) == 1 or limits.hold(size(part), sum(len(row.samples) for row in part))
        assert len(part) == 1 or limits.max_samples is None or sum(len(row.samples) for row in part) <= limits.max_samples
    assert parts == plan_micro_batches(rows, limits)


@given(LENGTHS, LIMITS)
@settings(max_examples=60, deadline=None)
def test_no_cut_of_the_sorted_rows_has_fewer_parts_or_a_smaller_largest_one(lengths, limits):
    fit = [length for length in lengths if limits.hold(length, 1)]
    if not fit:
        return
    ours = plan_micro_batches(plain(fit), limits)
    ordered = sorted(fit, reverse=True)
    best = min(
        (len(cut), max(len(part) * part[0] for part in cut))
        for cut in all_cuts(ordered)
        if all(limits.hold(len(part) * part[0], len(part)) for part in cut)
    )
    assert (len(ours), max(map(size, ours))) == best


def all_cuts(ordered):
    """Every way to cut a list into runs."""
    for count in range(len(ordered)):
        for places in combinations(range(1, len(ordered)), count):
            edges = [0, *places, len(ordered)]
            yield [ordered[start:end] for start, end in pairwise(edges)]


def test_a_longer_sample_goes_alone_and_does_not_widen_the_limit():
    parts = plan_micro_batches(plain([15, 7, 7, 2]), Limits(max_tokens=10))
    assert [[row.length for row in part] for part in parts] == [[15], [7], [7], [2]]


def test_a_prompt_is_shared_while_that_is_cheaper():
    prompt_of, lengths = np.zeros(4, int), np.array([100])
    short = plan_rows(range(4), prompt_of, lengths, np.full(4, 10), Limits(), 64)
    long = plan_rows(range(4), prompt_of, lengths, np.full(4, 10_000), Limits(), 64)
    assert [row.samples for row in short] == [(0, 1, 2, 3)]
    assert [row.samples for row in long] == [(0,), (1,), (2,), (3,)]


def test_nothing_to_pack():
    assert plan_micro_batches([], Limits(8)) == []


@given(st.lists(st.integers(1, 200), max_size=12), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_shares_hold_every_row_once_and_none_is_far_above_the_rest(lengths, num_ranks):
    rows = plain(lengths)
    shares = share_rows(rows, num_ranks, 1)
    assert sorted((row for share in shares for row in share), key=rows.index) == rows
    cost = {row.samples: row.length * (6 + row.length) for row in rows}
    loads = [sum(cost[row.samples] for row in share) for share in shares]
    assert max(loads) <= min(loads) + max(cost.values(), default=0)
