"""What TRL's ``GRPOTrainer`` makes of a batch: runs in TRL's own environment, imports nothing of miles.

    $TRL_PYTHON trl_losses.py FOLDER

FOLDER holds ``model`` (an HF folder with a tokenizer) and ``batch.json``; for each case this writes ``<name>.pt`` with the loss
and the gradient by parameter name.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def padded(rows, length, left=False, kind=torch.long):
    """Rows of the same length, filled up with zeros."""
    return torch.tensor(
        [[0] * (length - len(row)) + row if left else row + [0] * (length - len(row)) for row in rows], dtype=kind
    )


def inputs_of(batch):
    """The batch as the trainer would have prepared it."""
    width, height = max(map(len, batch["prompts"])), max(map(len, batch["responses"]))
    mask = padded(batch["masks"], height)
    return {
        "prompt_ids": padded(batch["prompts"], width, left=True),
        "prompt_mask": padded([[1] * len(row) for row in batch["prompts"]], width, left=True),
        "completion_ids": padded(batch["responses"], height),
        "completion_mask": padded([[1] * len(row) for row in batch["responses"]], height),
        "tool_mask": mask,
        "advantages": torch.tensor(batch["advantages"], dtype=torch.float64),
        "old_per_token_logps": padded(batch["old"], height, kind=torch.float64),
        "ref_per_token_logps": padded(batch["reference"], height, kind=torch.float64),
        "num_items_in_batch": mask.sum(),
    }


def main():
    """All cases."""
    folder = Path(sys.argv[1])
    batch = json.loads((folder / "batch.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    size = len(batch["prompts"])
    for name, options in batch["cases"].items():
        model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float64)
        config = GRPOConfig(
            output_dir=str(folder / "out"), use_cpu=True, bf16=False, fp16=False, report_to=[], save_strategy="no",
            per_device_train_batch_size=size, num_generations=size, gradient_accumulation_steps=1,
            temperature=batch["temperature"], max_completion_length=batch["constant"], gradient_checkpointing=False, **options,
        )  # fmt: skip
        data = Dataset.from_dict({"prompt": ["a"] * size})
        trainer = GRPOTrainer(model=model, reward_funcs=lambda completions, **_: [0.0] * len(completions), args=config,
                              train_dataset=data, processing_class=tokenizer)  # fmt: skip
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.double()
        trainer.model.train()
        loss = trainer._compute_loss(trainer.model, inputs_of(batch))
        loss.backward()
        gradients = {key: value.grad for key, value in trainer.model.named_parameters()}
        torch.save({"loss": float(loss), "gradients": gradients}, folder / f"{name}.pt")


if __name__ == "__main__":
    main()
