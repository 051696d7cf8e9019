"""The cost of a pass, a row and a token, found again from the sums that an engine keeps of its steps."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.engines.embedded.request import Generation, Request, Sampling
from miles.engines.embedded.work import StepWork, Work, joined
from miles.simulation.pass_cost import fit

pytestmark = pytest.mark.unit
STEPS = [(1, 128, 128), (2, 140, 200), (1, 7, 7), (1, 512, 5632), (2, 30, 45), (1, 64, 64)]
Costs = st.tuples(*[st.sampled_from([0.0, 1e-5, 1e-4, 2e-3])] * 3)


def worked(steps: list[tuple[int, int, int]], seconds: list[float]) -> dict[str, Any]:
    work = Work()
    for step, cost in zip(steps, seconds, strict=True):
        work.add(StepWork(*step, 0, 0), 1, cost)
    return work.to_wire()


@given(Costs)
@settings(max_examples=40, deadline=None)
def test_costs_without_noise_are_found_again(costs: tuple[float, float, float]) -> None:
    seconds = [sum(count * cost for count, cost in zip(step, costs, strict=True)) for step in STEPS]
    assert fit([worked(STEPS, seconds)]) == pytest.approx(costs, abs=1e-8)
    halves = [worked(STEPS[:3], seconds[:3]), worked(STEPS[3:], seconds[3:])]
    assert fit(halves) == pytest.approx(costs, abs=1e-8)


@given(st.lists(st.floats(1e-9, 1), min_size=len(STEPS), max_size=len(STEPS)))
@settings(max_examples=100, deadline=None)
def test_no_cost_is_negative_whatever_was_measured(seconds: list[float]) -> None:
    found = fit([worked(STEPS, seconds)])
    assert min(found) >= 0
    assert max(found) > 0


def test_a_shared_prompt_is_computed_once_and_what_was_answered_again() -> None:
    sampling = Sampling(max_new_tokens=9, temperature=1.0, top_p=1.0, top_k=0, seed=0)

    def row(prompt: tuple[int, ...], answered: int) -> Generation:
        return Generation(Request("r", prompt, sampling), list(range(answered)))

    rows = [row((1, 2, 3), 0), row((1, 2, 3), 4), row((7, 7), 1)]
    assert joined(rows) == StepWork(2, 3, 3 + 2 + 5, 2, 5)
    assert joined(rows).and_decoded(6) == StepWork(3, 9, 16, 2, 5)
    assert joined([]).and_decoded(6) == StepWork(1, 6, 6, 0, 0)
