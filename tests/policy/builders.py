"""Tiny models, configurations and rollouts for the tests of the policy."""

import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from miles.config.commands import TrainConfig
from miles.config.derived import Derived
from miles.policy.batch import TrainBatch
from miles.policy.model import PolicyModel
from miles.types import Group, Prompt, Rollout, Sample, SampleStatus, VersionSpan
from tests.builders import derived as plain_derived

PRESET = Path(__file__).parents[2] / "src/miles/presets/reverse/model"
VOCAB = 24
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
FAMILIES: dict[str, Any] = {
    "qwen3": Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=False),
    "llama": LlamaConfig(**SHAPE, tie_word_embeddings=False),
}


def causal_lm(family: str = "qwen3", seed: int = 0, **changes: Any) -> Any:
    """A random model of a family, in float32."""
    config = type(FAMILIES[family]).from_dict(FAMILIES[family].to_dict() | changes)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def policy_model(family: str = "qwen3", dtype: torch.dtype = torch.float64, **changes: Any) -> PolicyModel:
    """The same, wrapped."""
    return PolicyModel(causal_lm(family, **changes).to(dtype))


def derived(num_samples: int, *, num_steps: int = 1, num_optimizer_steps: int = 100, **limits: Any) -> Derived:
    """The derived values that the policy reads; the rest stands for nothing."""
    return plain_derived(
        global_batch_size=num_samples // num_steps,
        num_steps_per_rollout=num_steps,
        num_prompts=1,
        num_rollout=num_optimizer_steps // num_steps,
        num_optimizer_steps=num_optimizer_steps,
        max_context_len=128,
        max_prompt_len=64,
        eval_max_response_len=16,
        **limits,
    )


def config(folder: Path = PRESET, *, temperature: float = 1.0, **options: Any) -> TrainConfig:
    """A configuration; ``options`` are flat names of the algorithm, critic, optimiser, run and model sets."""
    names = {
        "optimizer": (
            "lr",
            "min_lr",
            "lr_decay_style",
            "lr_warmup_iters",
            "weight_decay",
            "clip_grad",
            "non_finite_steps",
            "vocab_chunk_size",
            "packing",
            "optimizer_cpu_offload",
        ),
        "run": ("deterministic", "seed"),
        "critic": ("critic_load", "critic_lr", "critic_lr_warmup_iters", "num_critic_only_steps", "value_clip", "gamma", "lambd"),
        "model": ("gradient_checkpointing", "ref_load", "ref_update_interval", "dtype"),
        "lora": ("lora_rank", "lora_alpha", "lora_targets"),
    }
    sets: dict[str, dict[str, Any]] = {name: {} for name in (*names, "algorithm")}
    sets["optimizer"] = {"lr": 1e-2, "clip_grad": 1e9}
    for name, value in options.items():
        owner = next((owner for owner, members in names.items() if name in members), "algorithm")
        sets[owner][name] = value
    return TrainConfig(
        model={"hf_checkpoint": folder} | sets.pop("model"),
        data={"prompt_data": folder / "config.json", "num_rollout": 10, "rollout_max_response_len": 16, "rollout_batch_size": 1},
        reward={"rm_type": "exact"},
        sampling={"rollout_temperature": temperature},
        **sets,
    )


def sample(group: int, index: int, prompt: tuple[int, ...], response: tuple[int, ...], **changes: Any) -> Sample:
    """One answer; log-probs −2, everything trained, reward 1, unless changed."""
    count = len(response)
    fields: dict[str, Any] = {
        "logprobs": (-2.0,) * count,
        "loss_mask": (1,) * count,
        "versions": (VersionSpan(0, 0, count),) if count else (),
        "status": SampleStatus.COMPLETED,
        "reward": 1.0,
    }
    return Sample(group, index, prompt, response, **(fields | changes))


def rollout(groups: list[list[Sample]], rollout_id: int = 0) -> Rollout:
    """A rollout of these samples."""
    prompts = [Prompt(number, number, 0, "", samples[0].prompt_ids if samples else ()) for number, samples in enumerate(groups)]
    return Rollout(rollout_id, tuple(Group(p, tuple(samples), 0) for p, samples in zip(prompts, groups, strict=True)))


def random_rollout(seed: int, *, num_groups: int = 3, group_size: int = 4, longest: int = 9, noise: float = 0.3) -> Rollout:
    """Answers of mixed lengths (empty ones too), masks with holes, unscored samples, rewards with ties."""
    rng = random.Random(seed)
    groups = []
    for number in range(num_groups):
        prompt = tuple(rng.randrange(1, VOCAB) for _ in range(rng.randint(1, 7)))
        samples = []
        for index in range(group_size):
            response = tuple(rng.randrange(1, VOCAB) for _ in range(rng.randint(0, longest)))
            samples.append(
                sample(
                    number,
                    index,
                    prompt,
                    response,
                    logprobs=tuple(-3.0 + rng.gauss(0, noise) for _ in response),
                    loss_mask=tuple(int(rng.random() < 0.8) for _ in response),
                    reward=None if rng.random() < 0.1 else rng.choice([0.0, 0.0, 1.0, 0.5]),
                )
            )
        groups.append(samples)
    return rollout(groups, seed)


def batch_of(made: Rollout) -> TrainBatch:
    """Its columns."""
    return TrainBatch.from_rollout(made, 0)
