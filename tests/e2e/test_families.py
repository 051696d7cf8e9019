"""Models of other families, from a folder to an export: what engines sample is what the policy trains."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from miles.loops.export_run import export_run
from tests.e2e.conftest import Collector
from tests.policy.builders import PRESET, causal_lm

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
FEW = ("--num-rollout", "2", "--rollout-batch-size", "4", "--skip-eval-before-train", "--rollout-temperature", "0.8")
MOVING = ("--entropy-coef", "0.1", "--lr", "1e-2")  # answers of a random model are all wrong, so that rewards move nothing


@pytest.mark.parametrize("family", ["qwen2", "llama"])  # every other run here is of a qwen3
def test_a_family_is_sampled_and_trained_alike(run_here: Callable[..., Collector], tmp_path: Path, family: str) -> None:
    causal_lm(family, vocab_size=100, eos_token_id=2).save_pretrained(tmp_path / "model")
    for file in PRESET.glob("*token*"):
        shutil.copy(file, tmp_path / "model")
    run = run_here("train", *FEW, *MOVING, "--hf-checkpoint", str(tmp_path / "model"))
    steps = [row for row in run.rows if "train/loss" in row]
    assert len(steps) == 2
    assert all(row["train/grad_norm"] > 0 for row in steps)
    assert all(row["train/train_rollout_logprob_abs_diff"] < 1e-4 for row in steps), "also under the weights of the first step"
    export_run(run.summary.run_dir, tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.config.model_type == family
    assert torch.isfinite(loaded(torch.tensor([[1, 5, 7]])).logits).all()
