"""Log-probs of the policy are those of a plain transformers forward pass, whatever shares a row; unfit models are refused."""

import json
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, CohereConfig

from miles.errors import PolicyError
from miles.policy.collate import collate
from miles.policy.model import PolicyModel, load_model
from miles.policy.packing import Layout, Limits, plan_micro_batches, plan_rows
from tests.policy.builders import PRESET, batch_of, causal_lm, policy_model, random_rollout

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module", params=["qwen3", "qwen2", "llama"])
def model(request):
    return policy_model(request.param)


def plain_scores(model, made, temperature):
    """Log-probs and entropies of every response token, one sample at a time, by transformers alone."""
    logprobs, entropies = [], []
    for one in made.samples:
        ids = torch.tensor([one.prompt_ids + one.response_ids])
        with torch.no_grad():
            logits = model.causal_lm(input_ids=ids).logits[0, len(one.prompt_ids) - 1 : -1] / temperature
        table = torch.log_softmax(logits, -1)
        logprobs += [row[token] for row, token in zip(table, one.response_ids, strict=True)]
        entropies += [-(row.exp() * row).sum() for row in table]
    return torch.stack(logprobs), torch.stack(entropies)


def our_scores(model, made, limits, temperature, *, share=True):
    """The same by the policy's forward passes; NaN where nothing is trained."""
    batch = batch_of(made)
    useful = [number for number, count in enumerate(batch.trained_lengths) if count]
    layout = Layout(16, share, model.packs_end_to_end)
    rows = plan_rows(useful, batch.prompt_of, batch.prompt_lengths, batch.fed_lengths, limits, layout)
    logprobs, entropies = (torch.full((len(batch.trained),), torch.nan, dtype=torch.float64) for _ in range(2))
    for part in plan_micro_batches(rows, limits, layout):
        with torch.no_grad():
            made_input = collate(batch, part, end_to_end=layout.end_to_end)
            scores = model(made_input, temperature, True)
            torch.testing.assert_close(model(made_input, temperature, False).logprobs, scores.logprobs)
        logprobs[made_input.response_index], entropies[made_input.response_index] = scores.logprobs, scores.entropy
    return batch, logprobs, entropies


@given(seed=st.integers(0, 10_000), tokens=st.sampled_from([1, 20, 60, None]), share=st.booleans())
@settings(max_examples=10, deadline=None)
def test_scores_equal_a_plain_forward_pass(model, seed, tokens, share):
    made = random_rollout(seed, num_groups=2, group_size=3, longest=5)
    if not any(any(one.loss_mask) for one in made.samples):
        return
    batch, logprobs, entropies = our_scores(model, made, Limits(tokens), 0.7, share=share)
    expected = plain_scores(model, made, 0.7)
    trained = torch.from_numpy(batch.trained)
    assert torch.equal(logprobs.isnan(), ~trained)
    torch.testing.assert_close(logprobs[trained], expected[0][trained], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropies[trained], expected[1][trained], rtol=1e-5, atol=1e-5)


def test_rows_share_prompts_where_every_layer_sees_everything(model):
    assert model.shares_prompts


def test_a_sliding_window_gets_plain_rows_and_its_own_numbers():
    changes = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0, "layer_types": ["sliding_attention"] * 2}
    model = policy_model("qwen2", **changes)
    assert not model.shares_prompts
    made = random_rollout(3)
    batch, logprobs, _ = our_scores(model, made, Limits(40), 1.0, share=False)
    trained = torch.from_numpy(batch.trained)
    torch.testing.assert_close(logprobs[trained], plain_scores(model, made, 1.0)[0][trained], rtol=1e-5, atol=1e-5)


def test_a_model_that_scales_its_logits_is_refused():
    config = CohereConfig(
        vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, logit_scale=0.5
    )
    with pytest.raises(PolicyError, match="CohereForCausalLM computes its logits by more than a head"):
        PolicyModel(AutoModelForCausalLM.from_config(config))


def test_dropout_is_silenced():
    model = policy_model("llama", attention_dropout=0.5)
    ids = torch.tensor([[1, 2, 3]])
    assert model.causal_lm.training
    assert torch.equal(model.causal_lm(input_ids=ids).logits, model.causal_lm(input_ids=ids).logits)


def test_the_preset_loads_in_float32():
    model = load_model(PRESET, device="cpu", gradient_checkpointing=False)
    assert model.shares_prompts
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert sum(parameter.numel() for parameter in model.parameters()) == 406_784


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(PolicyError, match="holds no config.json"):
        load_model(tmp_path / "gone", device="cpu", gradient_checkpointing=False)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nothing-known"}))
    with pytest.raises(PolicyError, match="cannot be loaded"):
        load_model(tmp_path, device="cpu", gradient_checkpointing=False)


@pytest.mark.parametrize("damage", ["cut", "gone", "lacking"])
def test_damaged_weights_are_refused(tmp_path, damage):
    if damage == "lacking":
        from safetensors.torch import save_file

        made = causal_lm()
        made.save_pretrained(tmp_path)
        save_file({"model.norm.weight": torch.ones(16)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    else:
        shutil.copytree(PRESET, tmp_path, dirs_exist_ok=True)
        weights = tmp_path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000]) if damage == "cut" else weights.unlink()
    with pytest.raises(PolicyError, match="cannot be loaded|the weights in .* lack "):
        load_model(tmp_path, device="cpu", gradient_checkpointing=False)
