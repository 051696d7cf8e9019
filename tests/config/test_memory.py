"""The size of a model by its config.json, against its file of weights and against published counts; memory by its rules."""

import json
import math
import struct

import pytest

from miles.config.memory import estimate, spell_bytes, spell_count
from miles.config.model_size import model_size
from miles.config.presets import PRESETS

pytestmark = pytest.mark.unit
QWEN3 = {"model_type": "qwen3", "vocab_size": 151936, "tie_word_embeddings": True, "head_dim": 128, "num_key_value_heads": 8}
PUBLISHED = {
    "Qwen3-0.6B": (QWEN3 | {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 3072},
                   596_049_920),
    "Qwen3-4B": (QWEN3 | {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 9728},
                 4_022_468_096),
    "Qwen3-30B-A3B": (QWEN3 | {"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
                               "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8,
                               "moe_intermediate_size": 768, "intermediate_size": 6144, "tie_word_embeddings": False},
                      30_532_122_624),
    "Qwen2.5-0.5B": ({"model_type": "qwen2", "vocab_size": 151936, "tie_word_embeddings": True, "hidden_size": 896,
                      "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864},
                     494_032_768),
    "Llama-3-8B": ({"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32,
                    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336}, 8_030_261_248),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_published_size(name):
    config, parameters = PUBLISHED[name]
    assert model_size(config).parameters == parameters


def test_the_preset_s_model_has_the_size_of_its_weights():
    folder = PRESETS / "reverse" / "model"
    raw = (folder / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
    stored = sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    assert model_size(json.loads((folder / "config.json").read_text())).parameters == stored


@pytest.mark.parametrize(
    "missing", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"]
)
def test_a_config_that_does_not_tell_gives_no_size(missing):
    config = dict(PUBLISHED["Llama-3-8B"][0])
    del config[missing]
    assert model_size(config) is None


@pytest.fixture
def sized(bench):
    """Estimates over a model folder of a known size."""
    folder = bench.folder / "sized"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(PUBLISHED["Qwen3-0.6B"][0] | {"max_position_embeddings": 4096}))
    return lambda **flags: estimate(bench.resolve("train", {"hf_checkpoint": str(folder)} | flags))


def test_weights_gradients_and_moments_by_the_rule(sized):
    memory = sized()
    parameters = 596_049_920
    assert [memory.policy[part] for part in ("weights", "gradients", "optimiser")] == [
        4 * parameters,
        4 * parameters,
        8 * parameters,
    ]
    assert memory.engine["engine weights"] == 4 * parameters
    assert memory.engine["KV cache"] == 28 * 2 * 128 * 8 * 4096 * 128 * 4  # layers, keys and values, slots, heads, context, size
    assert set(memory.rules) - {"reference", "critic"} == {*memory.policy, *memory.engine}
    assert "reference" not in memory.policy
    assert sized(use_kl_loss=True).policy["reference"] == 4 * parameters
    assert sized(advantage_estimator="ppo").policy["critic"] == 16 * parameters
    apart = sized(advantage_estimator="ppo", critic_num_gpus_per_node="2")
    assert apart.policy == memory.policy
    assert apart.critic == {"value model": 8 * parameters, "value activations": memory.policy["activations"]}
    assert "each rank of the critic: " in "\n".join(apart.lines()) and ", over 2 ranks" in apart.rules["value model"]


def test_what_saves_memory_saves_it_and_half_the_tokens_need_half(sized):
    whole = sized(max_tokens_per_gpu="8192").policy["activations"]
    assert sized(max_tokens_per_gpu="4096").policy["activations"] == whole // 2
    assert sized(max_tokens_per_gpu="8192", gradient_checkpointing=True).policy["activations"] < whole / 8
    chunked = sized(max_tokens_per_gpu="8192", vocab_chunk_size="1024").policy["logits"]
    assert chunked == 8192 * 1024 * 8
    assert sized(engine_max_running_requests="64").engine["KV cache"] == sized().engine["KV cache"] // 2


def test_what_is_offloaded_is_counted_in_host_memory(sized, monkeypatch):
    monkeypatch.setattr("miles.config.file_checks.device_of", lambda values, facts: "cuda")
    plain, offloaded = sized(dtype="bfloat16"), sized(dtype="bfloat16", optimizer_cpu_offload=True)
    assert offloaded.host == {part: plain.policy[part] for part in ("weights", "gradients", "optimiser")}
    assert plain.policy == offloaded.host | offloaded.policy
    assert "host memory for each trainer rank: " in "\n".join(offloaded.lines())
    apart = sized(dtype="bfloat16", optimizer_cpu_offload=True, advantage_estimator="ppo", critic_num_gpus_per_node="1")
    assert (apart.host, apart.critic_host) == (offloaded.host, {"value model": 16 * apart.parameters})
    assert plain.policy["activations"] == sized().policy["activations"] // 2


def test_every_number_stands_with_its_rule(sized):
    memory = sized()
    text = "\n".join(memory.lines())
    assert text.startswith("estimated from config.json: 596 M parameters")
    for part, size in (memory.policy | memory.engine).items():
        assert f"  {part} {spell_bytes(size)}: {memory.rules[part]}" in text


def test_sizes_are_spelt_short():
    assert [spell_bytes(size) for size in (512, 3 * 2**20, 5 * 2**29)] == ["0.5 KiB", "3.0 MiB", "2.5 GiB"]
    assert [spell_count(number) for number in (406784, 596_049_920, 30_532_122_624)] == ["0.4 M", "596 M", "30.5 B"]
