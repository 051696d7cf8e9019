"""LoRA: only the adapters move, what engines get is what is trained, and checkpoints hold the adapters alone."""

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from miles.errors import CheckpointError, PolicyError
from miles.loops.export_run import write_merged
from miles.policy.adapters import has_adapters, without_adapters
from miles.policy.checkpoint import HF, load_checkpoint, save_checkpoint
from miles.policy.collate import collate
from miles.policy.export import export_weights
from miles.policy.model import PolicyModel
from miles.policy.packing import Row
from miles.policy.ranks import OneRank
from miles.policy.sender import WeightSender
from miles.policy.trainer import Trainer
from tests.policy.builders import FAMILIES, batch_of, causal_lm, config, derived, policy_model, random_rollout

pytestmark = pytest.mark.unit
ROLLOUTS = [random_rollout(seed, num_groups=2) for seed in (31, 32)]


@pytest.fixture
def base(tmp_path):
    """The folder that the adapters stand beside."""
    causal_lm().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def trainer(base, dtype=torch.float64, *, rank=2, **options):
    return Trainer(config(base, lora_rank=rank, lr=0.05, **options), derived(8), model=policy_model(dtype=dtype))


def scores(model, made=ROLLOUTS[0]):
    """Log-probs of the rollout's tokens, one sample a row."""
    batch = batch_of(made)
    rows = [
        Row(int(batch.prompt_of[s]), (s,), int(batch.prompt_lengths[batch.prompt_of[s]] + batch.fed_lengths[s]), 0)
        for s in range(batch.num_samples)
        if batch.trained_lengths[s]
    ]
    with torch.no_grad():
        return model(collate(batch, rows), 1.0, False).logprobs


def test_only_the_adapters_move(base):
    built = trainer(base)
    before = {name: p.detach().clone() for name, p in built.model.named_parameters()}
    assert torch.equal(scores(built.model), scores(policy_model())), "B begins at 0"
    built.train_on(ROLLOUTS[0], 0)
    moved = {name for name, p in built.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert moved == {name for name in before if ".lora_B." in name}, "the first step moves B, whose gradient alone is not 0"
    built.train_on(ROLLOUTS[1], 1)
    assert {name for name, p in built.model.named_parameters() if not torch.equal(p, before[name])} == {
        name for name in before if ".lora_" in name
    }
    assert sum(p.numel() for p in built.model.parameters() if p.requires_grad) < 0.6 * sum(map(torch.numel, before.values()))


@pytest.mark.parametrize("family", FAMILIES)
def test_engines_get_what_is_trained(base, tmp_path, family):
    built = Trainer(config(base, lora_rank=3, lora_alpha=5.0), derived(8), model=policy_model(family))
    built.train_on(ROLLOUTS[0], 0)
    export_weights(built.model.causal_lm, tmp_path / "published")
    published = AutoModelForCausalLM.from_pretrained(tmp_path / "published", dtype=torch.float64)
    torch.testing.assert_close(scores(PolicyModel(published)), scores(built.model), rtol=0, atol=1e-10)
    assert not torch.allclose(scores(built.model), scores(policy_model(family)), atol=1e-3)
    sender = WeightSender(built.model.causal_lm, OneRank(), "float64")
    (specs,) = sender.stage(1, 1 << 30, shared=False, on_device=False)
    sent = sender._staged[1][0].tensors()
    on_disk = load_file(tmp_path / "published/model.safetensors")
    assert {spec.name for spec in specs} == {name for name, _ in sent} == on_disk.keys(), "however they travel"
    assert all(torch.equal(tensor, on_disk[name]) for name, tensor in sent)


def test_peft_and_the_merged_export_load_the_checkpoint(base, tmp_path):
    built = trainer(base, torch.float32)
    built.train_on(ROLLOUTS[0], 0)
    save_checkpoint(built, tmp_path / "kept", base)
    files = {path.name for path in (tmp_path / "kept" / HF).iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files
    assert not {"model.safetensors", "config.json"} & files
    loaded = PeftModel.from_pretrained(causal_lm(), tmp_path / "kept" / HF).eval()
    ids = torch.tensor([[1, 2, 3, 4]])
    torch.testing.assert_close(loaded(ids).logits, built.model.causal_lm(ids).logits, rtol=0, atol=1e-6)
    (tmp_path / "merged").mkdir()
    write_merged(tmp_path / "kept" / HF, tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(merged(ids).logits, built.model.causal_lm(ids).logits, rtol=0, atol=1e-5)
    export_weights(built.model.causal_lm, tmp_path / "published")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("merged", "published"))
    assert one.keys() == other.keys()
    with pytest.raises(CheckpointError, match="no adapters. Leave --merge-lora out"):
        write_merged(base, tmp_path / "merged")


def test_a_resumed_run_goes_on_bit_for_bit(base, tmp_path):
    whole = trainer(base, torch.float32)
    whole.train_on(ROLLOUTS[0], 0)
    save_checkpoint(whole, tmp_path / "kept", base)
    report = whole.train_on(ROLLOUTS[1], 1)
    resumed = trainer(base, torch.float32)
    load_checkpoint(resumed, tmp_path / "kept")
    assert resumed.train_on(ROLLOUTS[1], 1) == report
    assert all(map(torch.equal, resumed.model.parameters(), whole.model.parameters()))
    with pytest.raises(CheckpointError, match="another model"):
        load_checkpoint(trainer(base, torch.float32, rank=3), tmp_path / "kept")


def test_the_reference_is_the_policy_without_its_adapters(base):
    built = trainer(base, use_kl_loss=True, kl_loss_coef=0.1)
    start = scores(policy_model())
    assert built.reference is not None and built.reference.model is built.model
    assert built.train_on(ROLLOUTS[0], 0).metrics["train/kl_loss"] == 0.0
    assert built.train_on(ROLLOUTS[1], 1).metrics["train/kl_loss"] > 0
    with without_adapters(built.model):
        assert torch.equal(scores(built.model), start)
        assert any(p.requires_grad for p in built.model.parameters())
    assert not torch.equal(scores(built.model), start)


def test_targets_are_those_named_and_must_be_there(base):
    built = trainer(base, lora_targets=("q_proj",))
    assert all(".q_proj." in name for name, p in built.model.named_parameters() if p.requires_grad)
    assert has_adapters(built.model.causal_lm)
    with pytest.raises(PolicyError, match="Give --lora-targets names of its linear layers"):
        trainer(base, lora_targets=("query",))
