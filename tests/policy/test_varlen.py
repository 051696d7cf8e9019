"""Rows that stand end to end change nothing but what is computed for nobody: scores and gradients are those of masked rows."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.errors import PolicyError
from miles.policy.collate import collate, visible_keys
from miles.policy.packing import Layout, Limits, plan_rows
from miles.policy.varlen import pack_end_to_end, seen_keys, segment_attention
from tests.policy.builders import batch_of, causal_lm, policy_model, random_rollout
from tests.policy.test_model import our_scores, plain_scores
from tests.policy.test_trainer import CASES, gradient, relative, trainer

pytestmark = pytest.mark.unit
VARLEN = {"packing": "varlen"}


def visible_in(segments, width):
    """[width, width], bool: which token each token sees."""
    seen = torch.zeros(width, width, dtype=torch.bool)
    index = torch.arange(width) if segments.key_index is None else segments.key_index
    ends = zip(*(ends.tolist() for ends in (segments.query_ends, segments.key_ends)), strict=True)
    start, first = next(ends)
    for end, last in ends:
        of_segment = torch.ones(end - start, last - first, dtype=torch.bool).tril(last - first - (end - start))
        for query, row in enumerate(of_segment, start):
            seen[query, index[first:last][row]] = True
        start, first = end, last
    return seen


@given(seed=st.integers(0, 10_000), share=st.booleans())
@settings(max_examples=30, deadline=None)
def test_segments_say_what_masks_say(seed, share):
    batch = batch_of(random_rollout(seed, num_groups=2, group_size=3, longest=5))
    samples = range(batch.num_samples)
    layout = Layout(16, share, end_to_end=True)
    rows = plan_rows(samples, batch.prompt_of, batch.prompt_lengths, batch.fed_lengths, Limits(), layout)
    made = collate(batch, rows, end_to_end=True)
    blocks = []
    for row in rows:
        lengths = [batch.prompt_lengths[row.prompt], *batch.fed_lengths[list(row.samples)]]
        blocks.append(visible_keys(torch.tensor(np.repeat(np.arange(len(lengths)), lengths))[None])[0, 0])
    assert torch.equal(visible_in(made.segments, made.input_ids.shape[1]), torch.block_diag(*blocks).bool())
    assert made.segments.longest_query == int(made.segments.query_ends.diff().max())
    assert made.segments.longest_key == int(made.segments.key_ends.diff().max())


@given(seed=st.integers(0, 10_000), case=st.sampled_from(CASES[:5]), family=st.sampled_from(["qwen3", "qwen2", "llama"]))
@settings(max_examples=8, deadline=None)
def test_the_gradient_is_that_of_masked_rows(seed, case, family):
    made = random_rollout(seed, num_groups=2, group_size=3, longest=6)
    whole = gradient(made, family=family, **case)
    for limits in ({}, {"micro_batch_size": 1}, {"max_tokens_per_gpu": 24}):
        assert relative(gradient(made, family=family, limits=VARLEN | limits, **case), whole) <= 1e-6


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_float32_gradients_agree_too(family):
    made = random_rollout(5)
    exact = gradient(made, family=family)
    assert relative(gradient(made, family=family, limits=VARLEN, dtype=torch.float32).double(), exact) <= 1e-4


@pytest.mark.parametrize(
    "options",
    [
        {"vocab_chunk_size": 7},
        {"lora_rank": 2, "use_kl_loss": True, "kl_loss_coef": 0.1},
        {"entropy_coef": 0.05, "num_steps": 2},
    ],
    ids=["vocabulary chunks", "adapters beside their reference", "two steps"],
)
def test_metrics_are_those_of_masked_rows(options):
    made = random_rollout(6, num_groups=2)
    masked, packed = (trainer(made, limits=limits, **options) for limits in ({}, VARLEN))
    for rollout_id in range(2):
        one = dataclasses.replace(made, rollout_id=rollout_id)
        assert packed.train_on(one, 0).metrics == pytest.approx(masked.train_on(one, 0).metrics, rel=1e-6, abs=1e-9)


def test_reference_and_critic_stand_end_to_end_too(tmp_path):
    causal_lm(seed=3).save_pretrained(tmp_path)
    made = random_rollout(2, num_groups=2)
    options = {
        "ref_load": tmp_path,
        "critic_load": tmp_path,
        "advantage_estimator": "ppo",
        "use_kl_loss": True,
        "kl_loss_coef": 0.1,
    }
    masked, packed = (trainer(made, limits=limits, dtype=torch.float32, **options) for limits in ({}, VARLEN))
    assert packed.model.packs_end_to_end
    assert packed.reference.model.packs_end_to_end
    assert packed.critic.model.packs_end_to_end
    assert packed.train_on(made, 0).metrics == pytest.approx(masked.train_on(made, 0).metrics, rel=1e-3, abs=1e-5)


def test_gradient_checkpointing_leaves_the_gradient_alone():
    made = random_rollout(6)
    built = trainer(made, limits=VARLEN)
    built.model.causal_lm.gradient_checkpointing_enable({"use_reentrant": False})
    built.train_on(made, 0)
    assert relative(torch.cat([parameter.grad.flatten() for parameter in built.model.parameters()]), gradient(made)) <= 1e-6


def test_a_sliding_window_keeps_its_numbers():
    changes = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0, "layer_types": ["sliding_attention"] * 2}
    made = random_rollout(3)
    expected = plain_scores(policy_model("qwen2", **changes), made, 1.0)[0]
    model = policy_model("qwen2", **changes)
    pack_end_to_end(model, "cpu")
    batch, logprobs, _ = our_scores(model, made, Limits(40), 1.0, share=False)
    trained = torch.from_numpy(batch.trained)
    torch.testing.assert_close(logprobs[trained], expected[trained], rtol=1e-5, atol=1e-5)


def test_what_is_written_names_no_attention_of_ours(tmp_path):
    built = trainer(random_rollout(6), limits=VARLEN)
    assert "segments" not in built.model.causal_lm.config.to_json_string()


def test_a_model_that_hands_nothing_on_is_refused(monkeypatch):
    model = policy_model()
    decoder = model.causal_lm.get_decoder()
    forward = decoder.forward
    silent = lambda **given: forward(**{name: value for name, value in given.items() if not name.startswith("cu_")})  # noqa: E731
    monkeypatch.setattr(decoder, "forward", silent)
    with pytest.raises(PolicyError, match="Qwen3ForCausalLM does not compute rows that stand end to end .* --packing block-mask"):
        pack_end_to_end(model, "cpu")


@given(queries=st.integers(1, 6), more=st.integers(0, 5), window=st.none() | st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_a_query_sees_what_is_before_it_within_the_window(queries, more, window):
    keys = queries + more
    seen = seen_keys(queries, keys, window, torch.device("cpu"))
    place = torch.arange(keys)
    expected = torch.stack([(place <= at) & (at - place < (window or keys)) for at in range(more, keys)])
    if seen is not None:
        assert torch.equal(seen, expected)
    else:
        assert (queries == 1 and bool(expected.all())) or torch.equal(expected, torch.ones(keys, keys, dtype=torch.bool).tril())


def test_without_segments_every_row_is_one():
    layer = torch.nn.Module()
    query, key, value = (torch.randn(2, 3, 4, 8, dtype=torch.float64) for _ in range(3))
    plain = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(segment_attention(layer, query, key, value, None)[0], plain)
