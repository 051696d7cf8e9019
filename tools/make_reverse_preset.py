"""Write the prompts of the `reverse` preset: seeded random strings, the held-out ones disjoint from the rest.

Run from the project root: `python tools/make_reverse_preset.py`.
"""

import json
import random
from pathlib import Path

FOLDER = Path("src/miles/presets/reverse")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NUM_HELDOUT, NUM_TRAIN = 512, 4096


def draw(count: int, rng: random.Random, taken: set[str]) -> list[str]:
    """``count`` strings of 3–6 letters that are not taken yet; they are taken afterwards."""
    words: list[str] = []
    while len(words) < count:
        word = "".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 6)))
        if word not in taken:
            taken.add(word)
            words.append(word)
    return words


def write(name: str, words: list[str]) -> None:
    """One JSON object a line: the prompt with its start token, and the answer."""
    lines = [json.dumps({"prompt": f"<bos>rev:{word}=", "label": word[::-1]}) for word in words]
    (FOLDER / name).write_text("\n".join(lines) + "\n")


def main() -> None:
    """Write both files."""
    rng, taken = random.Random(999), set[str]()
    write("heldout.jsonl", draw(NUM_HELDOUT, rng, taken))
    write("prompts.jsonl", draw(NUM_TRAIN, rng, taken))


if __name__ == "__main__":
    main()
