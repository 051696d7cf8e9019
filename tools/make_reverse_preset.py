"""Write the data of the presets `reverse` and `reverse-sft`: seeded random strings, the held-out ones disjoint from the rest.

In the examples of `reverse-sft` every other answer has its letters shuffled.

Run from the project root: `python tools/make_reverse_preset.py`.
"""

import json
import random
from pathlib import Path

FOLDER = Path("src/miles/presets/reverse")
EXAMPLES = Path("src/miles/presets/reverse-sft/examples.jsonl")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NUM_HELDOUT, NUM_TRAIN, NUM_EXAMPLES = 512, 4096, 8192


def draw(count: int, rng: random.Random, taken: set[str]) -> list[str]:
    """``count`` strings of 3–6 letters that are not taken yet; they are taken afterwards."""
    words: list[str] = []
    while len(words) < count:
        word = "".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 6)))
        if word not in taken:
            taken.add(word)
            words.append(word)
    return words


def write(path: Path, words: list[str], answers: list[str]) -> None:
    """One JSON object a line: the prompt with its start token, and the answer."""
    pairs = zip(words, answers, strict=True)
    lines = [json.dumps({"prompt": f"<bos>rev:{word}=", "label": answer}) for word, answer in pairs]
    path.write_text("\n".join(lines) + "\n")


def half_wrong(word: str, rng: random.Random) -> str:
    """The word reversed, or every other time its letters in any order."""
    letters = list(word[::-1])
    if rng.random() < 0.5:
        rng.shuffle(letters)
    return "".join(letters)


def main() -> None:
    """Write the files."""
    rng, taken = random.Random(999), set[str]()
    for name, count in (("heldout.jsonl", NUM_HELDOUT), ("prompts.jsonl", NUM_TRAIN)):
        words = draw(count, rng, taken)
        write(FOLDER / name, words, [word[::-1] for word in words])
    words = draw(NUM_EXAMPLES, rng, taken)
    write(EXAMPLES, words, [half_wrong(word, rng) for word in words])


if __name__ == "__main__":
    main()
