"""Laws of rows and micro-batches: everything once, within limits, balanced, the same every time."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.policy.packing import Layout, Limits, Row, plan_micro_batches, plan_rows, share_rows

pytestmark = pytest.mark.unit

LIMITS = st.builds(Limits, st.none() | st.integers(1, 60), st.none() | st.integers(1, 5))
LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=9)
SAMPLES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), min_size=1, max_size=16)  # prompt, tokens fed
PROMPT_LENGTHS = np.array([1, 5, 12, 40])
PADDED, END_TO_END = Layout(16, shares_prompts=True), Layout(16, shares_prompts=True, end_to_end=True)
LAYOUTS = st.builds(Layout, st.sampled_from([1, 16, 4096]), st.booleans(), st.booleans())


def rows_of(samples, limits, layout=PADDED):
    """Rows of all samples, each given as (prompt, tokens fed)."""
    prompts, fed = (np.array(column) for column in zip(*samples, strict=True))
    return plan_rows(range(len(samples)), prompts, PROMPT_LENGTHS, fed, limits, layout)


def size(part, layout=PADDED):
    """Tokens of a forward pass, padding included."""
    return sum(row.length for row in part) if layout.end_to_end else len(part) * max(row.length for row in part)


def plain(lengths):
    """Rows of one sample each."""
    return [Row(0, (number,), length, length**2) for number, length in enumerate(lengths)]


@given(SAMPLES, LIMITS, LAYOUTS)
@settings(max_examples=60, deadline=None)
def test_every_sample_is_in_one_row_of_its_prompt(samples, limits, layout):
    rows = rows_of(samples, limits, layout)
    assert sorted(sample for row in rows for sample in row.samples) == list(range(len(samples)))
    for row in rows:
        assert all(samples[sample][0] == row.prompt for sample in row.samples)
        assert row.length == PROMPT_LENGTHS[row.prompt] + sum(samples[sample][1] for sample in row.samples)
        assert len(row.samples) == 1 or (layout.shares_prompts and limits.hold(row.length, len(row.samples)))
        prompt, fed = PROMPT_LENGTHS[row.prompt], [samples[sample][1] for sample in row.samples]
        assert row.pairs == prompt**2 + sum(count * (prompt + count) for count in fed)


@given(SAMPLES, LIMITS, LAYOUTS)
@settings(max_examples=60, deadline=None)
def test_micro_batches_hold_every_row_once_within_the_limits(samples, limits, layout):
    rows = rows_of(samples, limits, layout)
    parts = plan_micro_batches(rows, limits, layout)
    assert sorted((row for part in parts for row in part), key=rows.index) == rows
    for part in parts:
        assert len(part) == 1 or limits.hold(size(part, layout), sum(len(row.samples) for row in part))
        assert len(part) == 1 or limits.max_samples is None or sum(len(row.samples) for row in part) <= limits.max_samples
    assert parts == plan_micro_batches(rows, limits, layout)


@given(LENGTHS, LIMITS)
@settings(max_examples=60, deadline=None)
def test_no_cut_of_the_sorted_rows_has_fewer_parts_or_a_smaller_largest_one(lengths, limits):
    fit = [length for length in lengths if limits.hold(length, 1)]
    if not fit:
        return
    ours = plan_micro_batches(plain(fit), limits, PADDED)
    ordered = sorted(fit, reverse=True)
    best = min(
        (len(cut), max(len(part) * part[0] for part in cut))
        for cut in all_cuts(ordered)
        if all(limits.hold(len(part) * part[0], len(part)) for part in cut)
    )
    assert (len(ours), max(map(size, ours))) == best


@given(LENGTHS, st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_rows_end_to_end_leave_little_room_unused(lengths, most):
    fit = [length for length in lengths if length <= most]
    parts = plan_micro_batches(plain(fit), Limits(most), END_TO_END)
    assert (len(parts) - 1) * most < 2 * sum(fit) or not fit


def all_cuts(ordered):
    """Every way to cut a list into runs."""
    for count in range(len(ordered)):
        for places in combinations(range(1, len(ordered)), count):
            edges = [0, *places, len(ordered)]
            yield [ordered[start:end] for start, end in pairwise(edges)]


def test_a_longer_sample_goes_alone_and_does_not_widen_the_limit():
    parts = plan_micro_batches(plain([15, 7, 7, 2]), Limits(max_tokens=10), PADDED)
    assert [[row.length for row in part] for part in parts] == [[15], [7], [7], [2]]


def test_a_prompt_is_shared_while_that_is_cheaper():
    prompt_of, lengths = np.zeros(4, int), np.array([100])
    dense, end_to_end = Layout(64, shares_prompts=True), Layout(64, shares_prompts=True, end_to_end=True)
    short = plan_rows(range(4), prompt_of, lengths, np.full(4, 10), Limits(), dense)
    long = plan_rows(range(4), prompt_of, lengths, np.full(4, 10_000), Limits(), dense)
    assert [row.samples for row in short] == [(0, 1, 2, 3)]
    assert [row.samples for row in long] == [(0,), (1,), (2,), (3,)]
    always = plan_rows(range(4), prompt_of, lengths, np.full(4, 10_000), Limits(), end_to_end)
    assert [row.samples for row in always] == [(0, 1, 2, 3)]


def test_nothing_to_pack():
    assert plan_micro_batches([], Limits(8), PADDED) == plan_micro_batches([], Limits(8), END_TO_END) == []


@given(st.lists(st.integers(1, 200), max_size=12), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_shares_hold_every_row_once_and_none_is_far_above_the_rest(lengths, num_ranks):
    rows = plain(lengths)
    shares = share_rows(rows, num_ranks, Layout(1, shares_prompts=True))
    assert sorted((row for share in shares for row in share), key=rows.index) == rows
    cost = {row.samples: row.length * (6 + row.length) for row in rows}
    loads = [sum(cost[row.samples] for row in share) for share in shares]
    assert max(loads) <= min(loads) + max(cost.values(), default=0)
