"""Forward and backward of the policy beside TRL's on the same batches: tokens a second, peak memory, and where the time goes.

    PYTHONPATH=. TRL_PYTHON=/path/to/trl/python python bench/policy.py [--repeats 3] [--steps 5] [--hidden 256] [--layers 4]

Answers of mixed lengths (8–512 tokens) and of equal length (256), 8 prompts × 4 answers, one thread. Each repeat runs miles and
TRL in turn, in a process of its own; the table has medians. TRL is its ``GRPOTrainer`` loss (`dapo`) on the padded batch, in
micro-batches of 8; miles packs answers behind shared prompts, in micro-batches of 4096 tokens, once under masks and once end to
end (`--packing varlen`). All step AdamW.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from miles.policy.batch import TrainBatch
    from miles.policy.trainer import Trainer
    from miles.types import Rollout

GROUPS, SIZE, PROMPT, VOCAB, LONGEST = 8, 4, 48, 4096, 512
MICRO_BATCH, MICRO_TOKENS = 8, 4096
Batch = dict[str, list[Any]]
Parts = dict[str, float]
KINDS = {"mixed 8–512": (8, 512), "equal 256": (256, 256)}
PACKING = {"miles": "block-mask", "miles varlen": "varlen"}


def make_batch(low: int, high: int, seed: int) -> Batch:
    """Prompts and answers by sample, log-probs and rewards."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(4, VOCAB) for _ in range(PROMPT)] for _ in range(GROUPS)]
    answers = [[rng.randrange(4, VOCAB) for _ in range(rng.randint(low, high))] for _ in range(GROUPS * SIZE)]
    return {
        "prompts": [prompts[number // SIZE] for number in range(GROUPS * SIZE)],
        "answers": answers,
        "logprobs": [[-8.0] * len(answer) for answer in answers],
        "rewards": [float(number % SIZE) for number in range(GROUPS * SIZE)],
    }


def make_model(folder: Path, hidden: int, layers: int) -> None:
    """A random Qwen3 with a tokenizer that nobody uses."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=4, head_dim=hidden // 8, max_position_embeddings=1024, tie_word_embeddings=True, pad_token_id=0,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(Path(__file__).parents[1] / "src/miles/presets/reverse/model").save_pretrained(folder)


def timed(step: Callable[[], object], num_steps: int) -> float:
    """Median seconds of one call; the first, a warm-up, does not count."""
    step()
    seconds = []
    for _ in range(num_steps):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def rollout_of(batch: Batch) -> "Rollout":
    """The batch as miles has it."""
    from miles.types import Group, Prompt, Rollout, Sample, SampleStatus, VersionSpan

    groups = []
    for number in range(GROUPS):
        samples = []
        for sample in range(number * SIZE, (number + 1) * SIZE):
            answer, count = tuple(batch["answers"][sample]), len(batch["answers"][sample])
            samples.append(
                Sample(
                    number, sample, tuple(batch["prompts"][sample]), answer, tuple(batch["logprobs"][sample]), (1,) * count,
                    (VersionSpan(0, 0, count),), SampleStatus.COMPLETED, "", batch["rewards"][sample],
                )
            )  # fmt: skip
        groups.append(Group(Prompt(number, number, 0, "", samples[0].prompt_ids), tuple(samples), 0))
    return Rollout(0, tuple(groups))


def run_miles(folder: Path, num_steps: int, packing: str) -> tuple[float, Parts]:
    """Seconds of one optimiser step, and its parts."""
    import dataclasses

    from tests.policy.builders import derived

    from miles.config.commands import TrainConfig
    from miles.policy.batch import TrainBatch
    from miles.policy.trainer import Trainer

    config = TrainConfig(
        model={"hf_checkpoint": folder},
        data={
            "prompt_data": folder / "batch.json",
            "num_rollout": 10,
            "rollout_max_response_len": LONGEST,
            "rollout_batch_size": 1,
        },
        reward={"rm_type": "exact"},
        optimizer={"lr": 1e-5},
    )
    sizes = dataclasses.replace(derived(GROUPS * SIZE), max_tokens_per_gpu=MICRO_TOKENS, packing=packing)
    rollout = rollout_of(json.loads((folder / "batch.json").read_text()))
    trainer, columns = Trainer(config, sizes), TrainBatch.from_rollout(rollout, 0)
    seconds = timed(lambda: trainer.train_on_batch(columns), num_steps)
    return seconds, shares(trainer, columns)


def shares(trainer: "Trainer", columns: "TrainBatch") -> Parts:
    """Share of one step by part, in percent; backward holds the loss, the rest is clipping and metrics."""
    spent: Parts = {}

    def watch(owner: object, name: str, part: str) -> None:
        original = getattr(owner, name)

        def watched(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return original(*given, **named)
            finally:
                spent[part] = spent.get(part, 0.0) + time.perf_counter() - began

        setattr(owner, name, watched)

    for owner, name, part in (
        (trainer, "prepare", "planning"),
        (trainer.model, "forward", "forward"),
        (trainer, "backward", "both"),
        (trainer.optimizer, "step", "optimiser"),
        (trainer, "train_on_batch", "all"),
    ):
        watch(owner, name, part)
    trainer.train_on_batch(columns)
    whole, both = spent.pop("all"), spent.pop("both")
    spent["backward"] = both - spent["forward"]
    spent["rest"] = whole - sum(spent.values())
    return {part: round(100 * seconds / whole, 1) for part, seconds in spent.items()}


def run_trl(folder: Path, num_steps: int) -> tuple[float, Parts]:
    """The same by TRL."""
    os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    batch = json.loads((folder / "batch.json").read_text())
    size, tokenizer = GROUPS * SIZE, AutoTokenizer.from_pretrained(folder)
    options = GRPOConfig(
        output_dir=str(folder / "out"), use_cpu=True, bf16=False, report_to=[], save_strategy="no", beta=0.0, loss_type="dapo",
        per_device_train_batch_size=MICRO_BATCH, num_generations=SIZE, max_completion_length=LONGEST,
        gradient_checkpointing=False,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    data = Dataset.from_dict({"prompt": ["a"] * size})
    trainer = GRPOTrainer(model=model, reward_funcs=lambda completions, **_: [0.0] * len(completions), args=options,
                          train_dataset=data, processing_class=tokenizer)  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    adam = torch.optim.AdamW(trainer.model.parameters(), lr=1e-5, fused=True)
    total = sum(map(len, batch["answers"]))

    def step() -> None:
        adam.zero_grad()
        for start in range(0, size, MICRO_BATCH):
            answers = batch["answers"][start : start + MICRO_BATCH]
            width = max(map(len, answers))
            mask = torch.tensor([[1] * len(answer) + [0] * (width - len(answer)) for answer in answers])
            prompts = torch.tensor(batch["prompts"][start : start + MICRO_BATCH])
            inputs = {
                "prompt_ids": prompts,
                "prompt_mask": torch.ones_like(prompts),
                "completion_ids": torch.tensor([answer + [0] * (width - len(answer)) for answer in answers]),
                "completion_mask": mask,
                "advantages": torch.tensor([(number % SIZE - 1.5) for number in range(MICRO_BATCH)]),
                "num_items_in_batch": torch.tensor(total),
            }
            trainer._compute_loss(trainer.model, inputs).backward()
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        adam.step()

    return timed(step, num_steps), {}


def child(who: str, folder: str, num_steps: int) -> None:
    """Run one side in this process and print what it took."""
    import torch

    torch.set_num_threads(1)
    seconds, parts = run_trl(Path(folder), num_steps) if who == "trl" else run_miles(Path(folder), num_steps, PACKING[who])
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "megabytes": megabytes, "parts": parts}))


def main() -> None:
    """Alternate and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child, arguments.steps)
        return
    pythons = dict.fromkeys(PACKING, sys.executable) | {"trl": os.environ["TRL_PYTHON"]}
    print("| lengths | who | tokens/s | seconds a step | peak memory, MB | of a step, % |\n|---|---|---|---|---|---|")
    for kind, (low, high) in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            make_model(Path(folder), arguments.hidden, arguments.layers)
            batch = make_batch(low, high, 0)
            (Path(folder) / "batch.json").write_text(json.dumps(batch))
            tokens = sum(map(len, batch["answers"]))
            found: dict[str, list[dict[str, Any]]] = {who: [] for who in pythons}
            for _ in range(arguments.repeats):
                for who, python in pythons.items():
                    command = [python, __file__, "--child", who, folder, "--steps", str(arguments.steps)]
                    environment = os.environ | ({"PYTHONPATH": ""} if who == "trl" else {})
                    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
                    found[who].append(json.loads(done.stdout.splitlines()[-1]))
            for who, rows in found.items():
                seconds = statistics.median(row["seconds"] for row in rows)
                memory = statistics.median(row["megabytes"] for row in rows)
                parts = ", ".join(f"{part} {share:g}" for part, share in rows[-1]["parts"].items())
                print(f"| {kind} | {who} | {tokens / seconds:,.0f} | {seconds:.2f} | {memory:,.0f} | {parts} |", flush=True)


if __name__ == "__main__":
    main()
