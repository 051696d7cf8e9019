"""Losses and gradients equal those of TRL's ``GRPOTrainer`` on the same batch.

TRL lives in an environment of its own: set ``TRL_PYTHON`` to its interpreter, otherwise these tests are skipped.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from miles.policy.batch import TrainBatch
from miles.policy.trainer import Trainer
from tests.policy.builders import PRESET, causal_lm, config, derived, random_rollout
from tests.policy.test_advantages import reference as advantages_of

PYTHON = os.environ.get("TRL_PYTHON", "")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not PYTHON, reason="TRL_PYTHON names no interpreter that has trl"),
]
SEED, TEMPERATURE, CONSTANT = 31, 0.8, 16
CLIP = {"epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.0}
KL = {"use_kl_loss": True, "kl_loss_coef": 0.3}
CASES = {
    "grpo": (CLIP | {"loss_type": "grpo"}, {"loss_aggregation": "sequence-mean"}),
    "dapo": (CLIP | {"loss_type": "dapo"}, {"loss_aggregation": "token-mean"}),
    "dr_grpo": (CLIP | {"loss_type": "dr_grpo"}, {"loss_aggregation": "sequence-sum-over-constant"}),
    "gspo": (CLIP | {"loss_type": "grpo", "importance_sampling_level": "sequence"}, {"advantage_estimator": "gspo"}),
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.28, "beta": 0.0},
        {"advantage_estimator": "cispo", "eps_clip": 0.999999},  # TRL has no lower limit
    ),
    "kl": (CLIP | {"loss_type": "dapo", "beta": 0.3, "use_bias_correction_kl": False}, KL),
    "unbiased_kl": (
        CLIP | {"loss_type": "dapo", "beta": 0.3, "use_bias_correction_kl": True},
        KL | {"use_unbiased_kl": True},
    ),
}


def scores(model, one):
    """Log-probs of a sample's response."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([one.prompt_ids + one.response_ids])).logits[0]
    table = torch.log_softmax(logits[len(one.prompt_ids) - 1 : -1] / TEMPERATURE, -1)
    return [float(row[token]) for row, token in zip(table, one.response_ids, strict=True)]


def rollout_of():
    """Eight answers to two prompts, none of them empty, all scored: TRL knows no others."""
    return next(
        made
        for seed in range(SEED, SEED + 1000)
        for made in [random_rollout(seed, num_groups=2)]
        if all(any(s.loss_mask) and s.reward is not None for s in made.samples)
    )


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """TRL's loss and gradients by case, and the folder of the model and of the reference."""
    folder = tmp_path_factory.mktemp("trl")
    tokenizer = AutoTokenizer.from_pretrained(PRESET)
    policy, anchor = (causal_lm(seed=seed, vocab_size=len(tokenizer)) for seed in (0, 3))
    for model, name in ((policy, "model"), (anchor, "reference")):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    made = rollout_of()
    batch = {
        "prompts": [one.prompt_ids for one in made.samples],
        "responses": [one.response_ids for one in made.samples],
        "masks": [one.loss_mask for one in made.samples],
        "old": [one.logprobs for one in made.samples],
        "reference": [scores(anchor.double(), one) for one in made.samples],
        "advantages": [value for group in made.groups for value in advantages_of([s.reward for s in group.samples], True)],
        "temperature": TEMPERATURE,
        "constant": CONSTANT,
        "cases": {name: options for name, (options, _) in CASES.items()},
    }
    (folder / "batch.json").write_text(json.dumps(batch))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [PYTHON, str(Path(__file__).with_name("trl_losses.py")), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: torch.load(folder / f"{name}.pt") for name in CASES} | {"folder": folder}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_equal_trls(theirs, name):
    made = rollout_of()
    options = {"off_policy_correction": "rollout-logprobs", "eps_clip_high": 0.28} | CASES[name][1]
    if "use_kl_loss" in options:
        options["ref_load"] = theirs["folder"] / "reference"
    ours = Trainer(config(theirs["folder"] / "model", temperature=TEMPERATURE, **options), derived(len(made.samples)))
    ours.model.double()
    if ours.reference is not None:
        ours.reference.model.double()
    report = ours.train_on_batch(TrainBatch.from_rollout(made, 0))
    assert report.metrics["train/loss"] == pytest.approx(theirs[name]["loss"], rel=1e-5, abs=1e-7)
    for key, gradient in theirs[name]["gradients"].items():
        own = dict(ours.model.causal_lm.named_parameters())[key].grad
        assert float((own - gradient).norm()) <= 1e-5 * float(gradient.norm()), key
