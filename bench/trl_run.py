"""TRL's GRPOTrainer on the preset's model, prompts and hyper-parameters; prints one JSON object.

Runs in a venv of its own (torch 2.13.0, transformers, trl 1.16.0, datasets); called by `bench/first_light.py`.
"""

import argparse
import json
import os
import resource
import statistics
import time
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1"}

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

GROUPS, SAMPLES, MAX_NEW_TOKENS = 16, 8, 8
Rows = list[dict[str, Any]]


class Stopwatch(TrainerCallback):
    """When each step ended."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def on_step_begin(self, args: object, state: object, control: object, **more: object) -> None:
        """The first step begins."""
        if not self.stamps:
            self.stamps.append(time.perf_counter())

    def on_step_end(self, args: object, state: object, control: object, **more: object) -> None:
        """A step ended."""
        self.stamps.append(time.perf_counter())


class CountingTrainer(GRPOTrainer):
    """Counts the tokens it generates."""

    num_tokens = 0

    def _generate_single_turn(self, *args: Any, **more: Any) -> Any:
        generated = super()._generate_single_turn(*args, **more)
        self.num_tokens += sum(len(ids) for ids in generated[0])
        return generated


def rows(path: Path, count: int | None = None) -> Rows:
    """Prompts and labels, repeated as often as needed."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return lines if count is None else [lines[place % len(lines)] for place in range(count)]


def accuracy(model: Any, tokenizer: Any, heldout: Rows) -> float:
    """Share of greedy answers that equal the label."""
    model.eval()
    encoded = tokenizer([row["prompt"] for row in heldout], return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.no_grad():
        inputs = {key: encoded[key] for key in ("input_ids", "attention_mask")}
        out = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    texts = tokenizer.batch_decode(out[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(text == row["label"] for text, row in zip(texts, heldout, strict=True)) / len(heldout)


def reward(completions: list[str], label: list[str], **more: object) -> list[float]:
    """1 for the right answer."""
    return [float(completion == right) for completion, right in zip(completions, label, strict=True)]


def trainer_config(arguments: argparse.Namespace, out: str) -> GRPOConfig:
    """The preset's hyper-parameters in TRL's words."""
    return GRPOConfig(
        output_dir=out, use_cpu=True, bf16=False, per_device_train_batch_size=GROUPS * SAMPLES, gradient_accumulation_steps=1,
        num_generations=SAMPLES, max_completion_length=MAX_NEW_TOKENS, max_steps=arguments.steps, learning_rate=arguments.lr,
        lr_scheduler_type="linear", adam_beta1=0.9, adam_beta2=0.95, weight_decay=0.0, max_grad_norm=1.0, temperature=1.0,
        top_p=1.0,
        top_k=0, beta=0.0, epsilon=0.2, epsilon_high=0.28, loss_type="dapo", scale_rewards="group", logging_steps=10_000,
        save_strategy="no", report_to=[], seed=arguments.seed, disable_tqdm=True, shuffle_dataset=True,
    )  # fmt: skip


def main() -> None:
    """Train, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset-dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(arguments.preset_dir / "model")
    model = AutoModelForCausalLM.from_pretrained(arguments.preset_dir / "model", dtype=torch.float32)
    heldout = rows(arguments.preset_dir / "heldout.jsonl")
    data = Dataset.from_list(rows(arguments.preset_dir / "prompts.jsonl", arguments.steps * GROUPS))
    watch = Stopwatch()
    trainer = CountingTrainer(
        model=model, reward_funcs=reward, args=trainer_config(arguments, arguments.out), train_dataset=data,
        processing_class=tokenizer, callbacks=[watch],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    first = accuracy(model, tokenizer, heldout)
    trainer.train()
    steps = [after - before for before, after in zip(watch.stamps, watch.stamps[1:], strict=False)]
    result = {
        "step_ms": statistics.median(steps) * 1e3,
        "tokens_per_second": trainer.num_tokens / (watch.stamps[-1] - watch.stamps[0]),
        "first": first,
        "last": accuracy(model, tokenizer, heldout),
        "wall_seconds": time.perf_counter() - began,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
