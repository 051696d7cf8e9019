"""Make the model of the `reverse` preset: 0.4 M parameters, taught by examples of which half are wrong.

    OMP_NUM_THREADS=1 python tools/make_reverse_model.py [--out FOLDER]

`miles sft --preset reverse-sft` does the teaching; its first checkpoint that answers half of the held-out prompts (greedy)
correctly is taken: a model that knows the task, is unsure of it, and has room to learn by reinforcement. It begins with random
weights in the shape of the folder's own config.json (tools/make_reverse_shape.py).
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FOLDER = Path("src/miles/presets/reverse")
MILES = Path(sys.executable).with_name("miles")
INTERVAL = 25  # steps between two checkpoints
MAX_ANSWER_TOKENS = 8


def teach(run_dir: Path, more: list[str]) -> None:
    """Run `miles sft`, with a checkpoint every so many steps; ``more`` are further options."""
    command = [str(MILES), "sft", "--preset", "reverse-sft", "--save-interval", str(INTERVAL), "--run-dir", str(run_dir)]
    subprocess.run([*command, *more], check=True)


def accuracy(folder: Path, heldout: list[dict[str, str]]) -> float:
    """Share of held-out prompts answered correctly, greedily, by the model in a folder."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer([row["prompt"] for row in heldout], return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.no_grad():
        answers = model.generate(
            encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            max_new_tokens=MAX_ANSWER_TOKENS,
            do_sample=False,
        )
    texts = tokenizer.batch_decode(answers[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(text == row["label"] for text, row in zip(texts, heldout, strict=True)) / len(heldout)


def first_good_enough(run_dir: Path, enough: float) -> Path | None:
    """The HF folder of the earliest checkpoint that is; None where none is."""
    heldout = [json.loads(line) for line in (FOLDER / "heldout.jsonl").read_text().splitlines()]
    for checkpoint in sorted((run_dir / "checkpoints").glob("rollout-*")):
        right = accuracy(checkpoint / "hf", heldout)
        print(f"{checkpoint.name}: held-out accuracy {right:.3f}", flush=True)
        if right >= enough:
            return checkpoint / "hf"
    return None


def main() -> int:
    """Teach, choose, copy; options that are not listed go to `miles sft`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER / "model")
    parser.add_argument("--enough", type=float, default=0.5)
    arguments, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="reverse-sft-") as folder:
        teach(Path(folder) / "run", more)
        chosen = first_good_enough(Path(folder) / "run", arguments.enough)
        if chosen is None:
            print(f"no checkpoint answers {arguments.enough:.0%} correctly; pass a larger --train-iters", file=sys.stderr)
            return 1
        shutil.copytree(chosen, arguments.out, dirs_exist_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
