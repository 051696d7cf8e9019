"""Rows that stand end to end change nothing but what is computed for nobody: scores and gradients are those of masked rows."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.errors import PolicyError
from miles.policy.collate import collate, visible_keys
from miles.policy.packing import Layout, Limits, plan_rows
from miles.policy.ranks import OneRank
from miles.policy.trainer import Trainer
from miles.policy.varlen import (
    KERNEL_TOLERANCE,
    attended_both_ways,
    pack_as_chosen,
    pack_end_to_end,
    seen_keys,
    segment_attention,
)
from tests.policy.builders import batch_of, causal_lm, config, derived, policy_model, random_rollout
from tests.policy.test_model import our_scores, plain_scores
from tests.policy.test_trainer import CASES, gradient, relative, trainer

pytestmark = pytest.mark.unit
VARLEN = {"packing": "varlen"}
MADE = random_rollout(2, num_groups=2)


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


def silent(model):
    """The model, made one whose layers hand no segments on."""
    decoder = model.causal_lm.get_decoder()
    forward = decoder.forward
    decoder.forward = lambda **given: forward(**{name: value for name, value in given.items() if not name.startswith("cu_")})
    return model


def strict(model):
    """The model, made one whose layers take no segments."""
    decoder = model.causal_lm.get_decoder()
    forward = decoder.forward
    known = ("input_ids", "attention_mask", "position_ids", "use_cache")
    decoder.forward = lambda **given: forward(**given) if set(given) <= set(known) else int("no such argument")
    return model


def packed(model, sizes=None, ranks=None, **options):
    """A trainer of a run whose rows resolved to stand end to end."""
    return Trainer(config(**options), derived(len(MADE.samples), **(VARLEN | (sizes or {}))), ranks, model)


def is_as_loaded(built):
    """Whether rows are masked, the model attends as it was loaded to do, and steps are those of such a run."""
    plain = trainer(MADE, limits={})
    model = built.model
    attends = model.causal_lm.config._attn_implementation == plain.model.causal_lm.config._attn_implementation
    same = built.train_on(MADE, 0).metrics == plain.train_on(MADE, 0).metrics
    return attends and same and not model.packs_end_to_end


@pytest.mark.parametrize(("unfit", "words"), [
    (silent, "Qwen3ForCausalLM does not compute rows that stand end to end as it computes them apart"),
    (strict, "Qwen3ForCausalLM does not take rows that stand end to end .*no such argument"),
])  # fmt: skip
def test_an_unfit_model_has_its_rows_masked_unless_the_user_asked_for_more(unfit, words):
    with pytest.raises(PolicyError, match=f"{words}.* Use --packing block-mask"):
        packed(unfit(policy_model()), packing="varlen")
    built = packed(unfit(policy_model()))
    (note,) = built.notes
    assert re.fullmatch(f"--packing auto is block-mask here and not varlen: {words}.*", note)
    assert is_as_loaded(built)


def test_so_has_a_model_on_a_gpu_that_is_too_old(monkeypatch):
    def refuse(device):
        raise PolicyError(f"{device} is too old.")

    monkeypatch.setattr("miles.policy.varlen.refuse_unfit_gpu", refuse)
    with pytest.raises(PolicyError, match=r"cuda is too old\. Use --packing block-mask"):
        packed(policy_model(), {"device": "cuda"}, packing="varlen")
    built = packed(policy_model(), {"device": "cuda"})
    assert built.notes == ("--packing auto is block-mask here and not varlen: cuda is too old.",)
    assert is_as_loaded(built)


class BesideAnUnfitOne(OneRank):
    """The first of two ranks; the other one is not fit."""

    def sum(self, values):
        return values + 1


def test_ranks_agree():
    model = policy_model()
    pack_as_chosen([model], config(), derived(8, **VARLEN), BesideAnUnfitOne())
    assert not model.packs_end_to_end
    assert model.causal_lm.config._attn_implementation == model.own_attention == "sdpa"
    assert "another rank" in model.why_not_packed


def test_a_policy_takes_the_rows_of_its_reference(monkeypatch):
    other = silent(policy_model())
    monkeypatch.setattr("miles.policy.reference_model.load_model", lambda *_, **__: other)
    built = packed(policy_model(), use_kl_loss=True, kl_loss_coef=0.1)
    assert not built.model.packs_end_to_end
    assert built.notes == (other.why_not_packed,)
    monkeypatch.setattr("miles.policy.reference_model.load_model", lambda *_, **__: policy_model())
    plain = trainer(MADE, use_kl_loss=True, kl_loss_coef=0.1)
    assert built.train_on(MADE, 0).metrics == plain.train_on(MADE, 0).metrics


def test_a_fit_model_has_nothing_to_say():
    built = packed(policy_model())
    assert built.model.packs_end_to_end
    assert built.notes == ()


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


def test_what_a_gpu_is_tried_with_is_attention_over_segments():
    rough, plain = attended_both_ways(torch.device("cpu"))
    assert rough.shape == plain.shape == (1, 7, 4, 64)
    torch.testing.assert_close(rough, plain, rtol=KERNEL_TOLERANCE, atol=KERNEL_TOLERANCE)
    assert not torch.equal(rough, plain)  # in two number types, so that a GPU's kernel would be one of them
