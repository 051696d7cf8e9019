"""``docs/recipes``: a page for each recipe, with the plan that its launch script would carry out.

python -m tests.recipes            write the pages
python -m tests.recipes --check    exit 1 if a page is not what would be written

The plan is a dry run with the model's published ``config.json`` and a prompt file of the data's size, for GPUs of 140 GiB
(which are sold as 141 GB).
"""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from miles.config.presets import preset_file, preset_names, preset_needs
from miles_cli.app import app
from tests.gallery.page import working_directory

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "recipes"
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "max_position_embeddings": 40960}
SMALL = {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 3072}
MEDIUM = {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 9728}
LARGE = {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "intermediate_size": 6144}
HEADS = {"num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}
EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "num_key_value_heads": 4}
MIXTURE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 128, "tie_word_embeddings": False}
MODELS = {
    "Qwen/Qwen3-0.6B": QWEN3 | SMALL | HEADS,
    "Qwen/Qwen3-4B": QWEN3 | MEDIUM | HEADS,
    "Qwen/Qwen3-30B-A3B": QWEN3 | LARGE | MIXTURE | EXPERTS,
}
NUM_PROMPTS = {"question": 7473, "prompt": 17398}  # GSM8K's training part; DAPO-Math-17k
GPU_GIB = "140"
RECIPES = tuple(name for name in preset_names() if preset_needs(name))


def command_of(name: str) -> str:
    """The one command of a recipe's launch script."""
    (line,) = [line for line in script_of(name).read_text().splitlines() if line.startswith("exec ")]
    return line.removeprefix("exec ")


def script_of(name: str) -> Path:
    """A recipe's launch script."""
    return ROOT / "examples" / f"{name}.sh"


def model_of(name: str) -> str:
    """The model that a recipe needs, by its name on the hub."""
    return preset_needs(name)["hf_checkpoint"].split()[0]


def page(name: str) -> str:
    """The text of a recipe's page."""
    preset = preset_file(name).read_text()
    about = " ".join(line.removeprefix("# ") for line in preset.splitlines() if line.startswith("# "))
    needs = "".join(f"* `{option}`: {text}\n" for option, text in preset_needs(name).items())
    parts = (
        f"# {name}\n",
        "Written by `python -m tests.recipes` from the preset and its launch script; do not edit by hand.\n",
        f"{about}\n",
        f"It needs:\n\n{needs}",
        f"```console\n$ MODEL=… DATA=… examples/{name}.sh\n```\n",
        f"runs\n\n```console\n$ {command_of(name)}\n```\n",
        f"The preset says:\n\n```toml\n{preset}```\n",
        f"`--dry-run --gpu-memory-gib {GPU_GIB}`, which needs no GPU itself, plans:\n\n```\n{plan(name)}```\n",
    )
    return "\n".join(parts)


def plan(name: str) -> str:
    """The plan at the end of a dry run of the launch script's command."""
    out = dry_run(name)
    return out[out.index("\nplan\n") + 1 :].removesuffix("\n").rsplit("\n\n", 1)[0].removeprefix("plan\n") + "\n"


def dry_run(name: str, *more: str) -> str:
    """What a dry run of the launch script's command prints.

    Raises:
        AssertionError: it is refused; with what was said.
    """
    words = command_of(name).replace('"$MODEL"', model_of(name)).replace('"$DATA"', "data.jsonl").replace('"$@"', "")
    with working_directory() as folder:
        model = folder / model_of(name)
        model.mkdir(parents=True)
        (model / "config.json").write_text(json.dumps(MODELS[model_of(name)]))
        key = tomllib.loads(preset_file(name).read_text())["input_key"]
        line = json.dumps({key: "1 + 1", "label": "2", "answer": "2"}) + "\n"
        (folder / "data.jsonl").write_text(line * NUM_PROMPTS[key])
        words_here = [*shlex.split(words)[1:], *more, "--dry-run", "--gpu-memory-gib", GPU_GIB]
        result: Any = CliRunner().invoke(app, words_here, prog_name="miles")
    if result.exit_code:
        raise AssertionError(f"{name}: {result.stderr}{result.exception!r}")
    return re.sub(rf"(/private)?{re.escape(str(folder))}/?", "", result.stdout)
