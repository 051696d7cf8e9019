"""Prompts that are shared are computed once, and nobody can tell by the answers."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.engines.embedded import prefill
from miles.engines.embedded.model import LoadedModel, load_model
from miles.engines.embedded.prefill import Joining, cut_by_tokens, fixed_passes, head_passes, split, tail_passes
from miles.engines.embedded.request import Generation, Request, Sampling
from miles.engines.embedded.runner import TorchRunner

from .engine_fixtures import ModelFolders

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]

NUM_SLOTS, CONTEXT_LEN = 16, 64
SAMPLING = Sampling(max_new_tokens=8, temperature=0.9, top_p=1.0, top_k=0, seed=0)

prompts = st.sampled_from([(3,), (3, 4), (5, 6, 7), tuple(range(3, 40))])
answers = st.lists(st.integers(3, 90), max_size=6)
joining_rows = st.lists(st.tuples(prompts, answers), min_size=1, max_size=NUM_SLOTS)


def generation(number: int, prompt: tuple[int, ...], answer: list[int]) -> Generation:
    request = Request(f"r{number}", prompt, replace(SAMPLING, seed=number), return_logprob=True)
    return Generation(request, output_ids=list(answer), logprobs=[-1.0] * len(answer))


def generations(rows: list[tuple[tuple[int, ...], list[int]]]) -> list[Generation]:
    made = [generation(number, prompt, answer) for number, (prompt, answer) in enumerate(rows)]
    return sorted(made, key=lambda each: each.num_tokens)


@given(joining_rows)
def test_heads_and_tails_are_the_rows_and_each_head_is_computed_once(rows: list[tuple[tuple[int, ...], list[int]]]) -> None:
    given_rows = generations(rows)
    joining = split(given_rows)
    for each, (head, tail) in zip(given_rows, joining, strict=True):
        assert head + tail == (*each.request.input_ids, *each.output_ids)
    passes = list(head_passes(joining))
    computed = [head for one in passes for head in one.heads]
    assert len(computed) == len({*computed})
    found = {row: one.heads[source] for one in passes for row, source in zip(one.rows, one.sources, strict=True)}
    assert [found[row] for row in range(len(rows))] == [head for head, _ in joining]
    assert sorted(row for one in tail_passes(joining) for row in one) == [row for row, (_, tail) in enumerate(joining) if tail]


@given(joining_rows)
def test_deterministic_passes_hold_every_row_once_in_a_shape_of_its_own_length(
    rows: list[tuple[tuple[int, ...], list[int]]],
) -> None:
    given_rows = generations(rows)
    passes = list(fixed_passes(given_rows, CONTEXT_LEN))
    assert [row for one in passes for row in one.rows] == list(range(len(rows)))
    for one in passes:
        for row, source in zip(one.rows, one.sources, strict=True):
            tokens = one.heads[source]
            assert tokens == (*given_rows[row].request.input_ids, *given_rows[row].output_ids)
            alone = next(iter(fixed_passes([given_rows[row]], CONTEXT_LEN)))
            assert (one.num_rows, one.length) == (alone.num_rows, alone.length)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30))
def test_passes_stay_within_their_limits(lengths: list[int]) -> None:
    batches = list(cut_by_tokens((0,) * length for length in sorted(lengths)))
    assert [len(tokens) for batch in batches for tokens in batch] == sorted(lengths)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * len(batch[-1]) <= prefill.PASS_TOKENS
        assert len(batch[-1]) <= max(2 * len(batch[0]), prefill.LENGTH_STEP)


def test_an_answer_too_long_for_the_mask_is_computed_with_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "TAIL_CELLS", 20)
    rows = generations([((3, 4), [5] * 2), ((3, 4), [5] * 4), ((3, 4), [6, 7])])
    assert split(rows) == [Joining((3, 4), (5, 5)), Joining((3, 4), (6, 7)), Joining((3, 4, 5, 5, 5, 5), ())]
    assert list(tail_passes(split(rows))) == [[0, 1]]


def drawn(model: LoadedModel, rows: list[Generation], num_decoded: int) -> tuple[list[list[int]], list[list[float]]]:
    """What a runner draws for rows that join together and then decode."""
    runner = TorchRunner(model, NUM_SLOTS, CONTEXT_LEN, deterministic=False)
    steps = [runner.prefill(rows, 0), *(runner.decode(len(rows)) for _ in range(num_decoded))]
    columns = [list(zip(*step, strict=True)) for step in steps]
    return [list(column[0]) for column in columns], [list(column[1]) for column in columns]


@settings(deadline=None, max_examples=8)
@given(joining_rows, st.integers(0, 2**16))
def test_shared_prompts_draw_what_each_row_draws_alone(
    folders: dict[str, ModelFolders], rows: list[tuple[tuple[int, ...], list[int]]], seed: int
) -> None:
    model = load_model(str(folders["qwen3"].first))
    random.Random(seed).shuffle(rows)
    given_rows = generations(rows)
    tokens, logprobs = drawn(model, given_rows, 3)
    for row, each in enumerate(given_rows):
        alone_tokens, alone_logprobs = drawn(model, [each], 3)
        assert [step[row] for step in tokens] == [step[0] for step in alone_tokens]
        torch.testing.assert_close(
            torch.tensor([step[row] for step in logprobs]), torch.tensor([step[0] for step in alone_logprobs]), atol=2e-5, rtol=0
        )
