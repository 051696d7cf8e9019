"""A checkpoint goes on bit for bit, is an HF folder, and is refused when anything in it is not what was written."""

import json
import resource

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig

from miles.errors import CheckpointError
from miles.policy.checkpoint import load_checkpoint, save_checkpoint
from miles.policy.export import export_weights
from miles.policy.trainer import Trainer
from tests.policy.builders import PRESET, SHAPE, VOCAB, causal_lm, config, derived, policy_model, random_rollout

pytestmark = pytest.mark.unit

ROLLOUTS = [random_rollout(seed, num_groups=2) for seed in (21, 22, 23)]


def trainer(family="qwen3", **options):
    """A float32 trainer on a tiny model."""
    settings = {"lr_decay_style": "cosine", "lr_warmup_iters": 1, "weight_decay": 0.01} | options
    return Trainer(config(**settings), derived(8), model=policy_model(family, torch.float32))


def bits(built):
    """Copies of all weights."""
    return [parameter.detach().clone() for parameter in built.model.parameters()]


@pytest.fixture
def saved(tmp_path):
    """A trainer after one rollout, and its checkpoint."""
    built = trainer()
    built.train_on(ROLLOUTS[0], 0)
    save_checkpoint(built, tmp_path / "kept", PRESET)
    return built, tmp_path / "kept"


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_a_resumed_trainer_goes_on_bit_for_bit(tmp_path, family):
    whole = trainer(family)
    whole.train_on(ROLLOUTS[0], 0)
    save_checkpoint(whole, tmp_path / "kept", PRESET)
    noise = torch.rand(3)
    reports = [whole.train_on(made, 0) for made in ROLLOUTS[1:]]
    resumed = trainer(family)
    load_checkpoint(resumed, tmp_path / "kept")
    assert torch.equal(torch.rand(3), noise)
    assert [resumed.train_on(made, 0) for made in ROLLOUTS[1:]] == reports
    assert all(map(torch.equal, bits(resumed), bits(whole)))
    assert resumed.num_optimizer_steps == whole.num_optimizer_steps == 3


@pytest.mark.parametrize("style", ["constant", "linear", "cosine"])
def test_a_changed_option_counts_from_the_resume_on(tmp_path, style):
    built = trainer(lr_decay_style=style)
    built.train_on(ROLLOUTS[0], 0)
    save_checkpoint(built, tmp_path / "kept", PRESET)
    changed = trainer(lr_decay_style=style, lr=built.schedule.base_lrs[0] / 2, weight_decay=0.3)
    load_checkpoint(changed, tmp_path / "kept")
    assert changed.learning_rate == pytest.approx(built.learning_rate / 2)
    assert changed.optimizer.param_groups[0]["weight_decay"] == 0.3
    assert changed.schedule.get_last_lr() == [changed.learning_rate]


def test_the_hf_folder_is_one(saved):
    built, folder = saved
    loaded = AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=torch.float32)
    assert all(map(torch.equal, loaded.state_dict().values(), built.model.causal_lm.state_dict().values()))
    assert AutoTokenizer.from_pretrained(folder / "hf").encode("rev:abc=") == AutoTokenizer.from_pretrained(PRESET).encode(
        "rev:abc="
    )
    assert json.loads((folder / "hf/config.json").read_text())["vocab_size"] == VOCAB  # the trainer's, not the source's
    assert [path.name for path in folder.parent.iterdir()] == ["kept"]


def test_saving_again_replaces_the_checkpoint(saved):
    built, folder = saved
    built.train_on(ROLLOUTS[1], 1)
    save_checkpoint(built, folder, PRESET)
    other = trainer()
    load_checkpoint(other, folder)
    assert other.num_optimizer_steps == 2
    assert [path.name for path in folder.parent.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    "name", ["hf/model.safetensors", "hf/config.json", "hf/tokenizer.json", "trainer/state.pt", "trainer/tensors/.metadata"]
)
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damage_is_found_and_changes_nothing(saved, name, damage):
    _, folder = saved
    path = folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data if damage == "flip" else data[:-1]) if damage != "gone" else path.unlink()
    other = trainer()
    before = bits(other)
    with pytest.raises(CheckpointError, match=f"{name} is (missing|damaged).*Resume from an older checkpoint"):
        load_checkpoint(other, folder)
    assert all(map(torch.equal, bits(other), before))


def test_no_checkpoint_is_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="is no complete checkpoint"):
        load_checkpoint(trainer(), tmp_path / "gone")


def test_another_model_is_refused(saved):
    other = Trainer(config(), derived(8), model=policy_model("qwen3", torch.float32, hidden_size=32))
    with pytest.raises(CheckpointError, match="is of another model: model.embed_tokens.weight"):
        load_checkpoint(other, saved[1])


def test_another_format_is_refused(saved):
    folder = saved[1]
    torch.save({"format": 99}, folder / "trainer/state.pt")
    (folder / "trainer/files.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has format 99, this version of miles reads 2"):
        load_checkpoint(trainer(), folder)


def test_a_full_disk_leaves_the_old_checkpoint(saved):
    built, folder = saved
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CheckpointError, match="could not be written.*Free disk space \\([\\d,]+ MiB are free in "):
            save_checkpoint(built, folder, PRESET)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["kept"]


@pytest.mark.parametrize("step", ["fsync", "write"])
def test_a_failure_at_any_point_leaves_the_old_checkpoint(saved, monkeypatch, step):
    built, folder = saved
    full = OSError(28, "No space left on device")
    target = "miles.policy.folders._flush" if step == "fsync" else "miles.policy.checkpoint.torch.save"
    monkeypatch.setattr(target, lambda *arguments: (_ for _ in ()).throw(full))
    with pytest.raises(CheckpointError, match="No space left on device"):
        save_checkpoint(built, folder, PRESET)
    monkeypatch.undo()
    load_checkpoint(trainer(), folder)


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_an_export_loads_in_transformers(tmp_path, family):
    model = causal_lm(family)
    for round_ in (0, 1):  # the second replaces the first
        with torch.no_grad():
            model.get_input_embeddings().weight += round_
        export_weights(model, tmp_path / "version-1")
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "version-1", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert all(map(torch.equal, loaded.state_dict().values(), model.state_dict().values()))
    assert sorted(path.name for path in (tmp_path / "version-1").iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["version-1"]


def test_an_export_whose_names_on_disk_are_others_loads_too(tmp_path):
    sizes = {"moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2}
    made = Qwen3MoeConfig(**SHAPE, **sizes)
    AutoModelForCausalLM.from_config(made).save_pretrained(tmp_path / "source")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "source")
    export_weights(model, tmp_path / "version-1")
    names = safe_open(tmp_path / "version-1/model.safetensors", "pt").keys()
    assert "model.layers.0.mlp.experts.0.down_proj.weight" in names
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "version-1")
    assert all(map(torch.equal, loaded.state_dict().values(), model.state_dict().values()))


def test_an_export_that_fails_leaves_nothing_behind(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        export_weights(causal_lm(), tmp_path / "file" / "version-1")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
