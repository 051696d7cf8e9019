"""Draws: their distribution, their support, and that they depend on nothing but the row."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.engines.embedded.sampling import RowParams, sample, uniform

pytestmark = pytest.mark.unit

WORD = 2**64


def params(count: int, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, seed: int = 0) -> RowParams:
    return RowParams(
        torch.full((count,), temperature),
        torch.full((count,), top_p),
        torch.full((count,), top_k),
        torch.full((count,), seed),
    )


def splitmix(state: int) -> int:
    """SplitMix64 in whole numbers, the second implementation."""
    state = (state + 0x9E3779B97F4A7C15) % WORD
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % WORD
    return state ^ (state >> 31)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**20))
def test_uniform_is_splitmix(seed: int, position: int) -> None:
    drawn = uniform(torch.tensor([seed]), torch.tensor([position])).item()
    inner = splitmix(seed % WORD)
    assert drawn == (splitmix((inner + position * 0x9E3779B97F4A7C15) % WORD) >> 12) / 2**52
    assert 0 <= drawn < 1


def test_uniforms_are_uniform_over_seeds_and_over_positions() -> None:
    many = torch.arange(20_000)
    for drawn in (uniform(many, torch.full_like(many, 3)), uniform(torch.full_like(many, 3), many)):
        counts = np.histogram(drawn.numpy(), bins=20, range=(0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 50  # chi-square, 19 degrees: P(> 50) < 2e-4


def test_draws_follow_the_softmax_at_temperature() -> None:
    count, temperature = 20_000, 0.7
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -30.0])
    rows = params(count, temperature)
    rows.seed[:] = torch.arange(count)
    tokens, logprobs = sample(logits.expand(count, -1), rows, torch.zeros(count, dtype=torch.int64))
    expected = (logits / temperature).softmax(-1)
    assert torch.equal(logprobs, (logits / temperature).log_softmax(-1)[tokens])
    counts = torch.bincount(tokens, minlength=5)
    assert counts[4] == 0
    assert ((counts[:4] - count * expected[:4]) ** 2 / (count * expected[:4])).sum() < 25


def support(logits: list[float], top_p: float, top_k: int) -> set[int]:
    """What truncation keeps, token by token."""
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    total, kept, before = sum(weights), set(), 0.0
    for rank, token in enumerate(sorted(range(len(logits)), key=lambda t: (-logits[t], t))):
        if (top_k > 0 and rank >= top_k) or before > top_p + 1e-6:
            break
        kept.add(token)
        before += weights[token] / total
    return kept


logit_rows = st.lists(st.integers(-40, 40).map(lambda x: x / 10), min_size=2, max_size=12)


@given(logit_rows, st.floats(0.05, 1.0), st.integers(0, 6), st.integers(0, 2**40))
def test_draws_stay_in_the_support(logits: list[float], top_p: float, top_k: int, seed: int) -> None:
    row = torch.tensor([logits])
    tokens, logprobs = sample(row, params(1, top_p=top_p, top_k=top_k, seed=seed), torch.tensor([4]))
    assert tokens.item() in support(logits, top_p, top_k)
    assert logprobs.item() == pytest.approx(row.log_softmax(-1)[0, tokens.item()].item())


@pytest.mark.parametrize(("top_p", "top_k"), [(0.6, 0), (1.0, 3), (0.9, 2)])
def test_every_token_of_the_support_is_drawn(top_p: float, top_k: int) -> None:
    logits = [0.5, 1.5, 1.0, 0.0, -1.0]
    rows = params(3000, top_p=top_p, top_k=top_k)
    rows.seed[:] = torch.arange(3000)
    tokens, _ = sample(torch.tensor([logits]).expand(3000, -1), rows, torch.zeros(3000, dtype=torch.int64))
    assert set(tokens.tolist()) == support(logits, top_p, top_k)


@given(logit_rows, st.integers(0, 2**40))
def test_greedy_is_the_first_maximum(logits: list[float], seed: int) -> None:
    tokens, _ = sample(torch.tensor([logits]), params(1, top_k=1, seed=seed), torch.tensor([0]))
    assert logits[tokens.item()] == max(logits)


@settings(deadline=None)
@given(st.data())
def test_a_row_depends_on_itself_alone(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    logits = torch.randn(count, 57)
    rows = RowParams(
        torch.rand(count) + 0.1, torch.rand(count) + 0.5, torch.randint(0, 9, (count,)), torch.randint(0, 2**60, (count,))
    )
    rows.top_p.clamp_(max=1)
    positions = torch.randint(0, 500, (count,))
    tokens, logprobs = sample(logits, rows, positions)
    order = torch.randperm(count)[: data.draw(st.integers(1, count))]
    some = RowParams(rows.temperature[order], rows.top_p[order], rows.top_k[order], rows.seed[order])
    again, logprobs_again = sample(logits[order], some, positions[order])
    assert torch.equal(again, tokens[order])
    assert torch.equal(logprobs_again, logprobs[order])
