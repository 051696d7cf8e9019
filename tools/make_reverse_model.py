"""Make the model of the `reverse` preset: 0.4 M parameters, taught by examples of which half are wrong.

    OMP_NUM_THREADS=1 python tools/make_reverse_model.py [--out FOLDER]

A character tokenizer, a Qwen3 of two layers, and supervised steps on "reverse a string of 3–6 letters" in which half of
the answers have their letters shuffled. It stops as soon as the model answers half of the held-out prompts (greedy)
correctly: a model that knows the task, is unsure of it, and has room to learn by reinforcement.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

FOLDER = Path("src/miles/presets/reverse")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
IGNORED = -100
MAX_ANSWER_TOKENS = 8


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each printable ASCII character and newline, after four special tokens."""
    symbols = [PAD, BOS, EOS, UNK, *map(chr, range(32, 127)), "\n"]
    tokenizer = Tokenizer(models.WordLevel({symbol: number for number, symbol in enumerate(symbols)}, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(symbol, special=True) for symbol in (PAD, BOS, EOS, UNK)])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=EOS, unk_token=UNK, padding_side="left"
    )
    wrapped.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return wrapped


def make_model(vocab_size: int, seed: int) -> Qwen3ForCausalLM:
    """Two layers of width 128, four heads over two key-value heads, tied embeddings."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size, hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=256, tie_word_embeddings=True,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def example(rng: random.Random) -> tuple[str, str]:
    """A prompt and an answer, which is wrong (shuffled) every other time."""
    word = [rng.choice(LETTERS) for _ in range(rng.randint(3, 6))]
    answer = word[::-1]
    if rng.random() < 0.5:
        rng.shuffle(answer)
    return f"{BOS}rev:{''.join(word)}=", "".join(answer) + EOS


def collate(tokenizer: PreTrainedTokenizerFast, rows: list[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded token ids and labels [rows, length]; labels are set on answer tokens only."""
    pairs = [(tokenizer.encode(p, add_special_tokens=False), tokenizer.encode(a, add_special_tokens=False)) for p, a in rows]
    length = max(len(prompt) + len(answer) for prompt, answer in pairs)
    ids, labels = torch.zeros(len(rows), length, dtype=torch.long), torch.full((len(rows), length), IGNORED)
    for row, (prompt, answer) in enumerate(pairs):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    return ids, labels


def accuracy(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: list[dict[str, str]]) -> float:
    """Share of greedy answers that equal the label."""
    encoded = tokenizer([row["prompt"] for row in rows], return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.no_grad():
        answers = model.generate(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            max_new_tokens=MAX_ANSWER_TOKENS,
            do_sample=False,
        )
    texts = tokenizer.batch_decode(answers[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(text == row["label"] for text, row in zip(texts, rows, strict=True)) / len(rows)


def teach(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, heldout: list[dict[str, str]], enough: float, seed: int
) -> None:
    """Supervised steps until the held-out accuracy is enough."""
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.01)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.02, total_iters=50)
    step = 0
    while True:
        step += 1
        ids, labels = collate(tokenizer, [example(rng) for _ in range(128)])
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        warmup.step()
        if step % 25 == 0:
            right = accuracy(model, tokenizer, heldout)
            print(f"step {step}: loss {loss.item():.3f}, held-out accuracy {right:.3f}", flush=True)
            if right >= enough:
                return


def main() -> None:
    """Make, teach, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER / "model")
    parser.add_argument("--enough", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tokenizer = make_tokenizer()
    model = make_model(len(tokenizer), arguments.seed)
    heldout = [json.loads(line) for line in (FOLDER / "heldout.jsonl").read_text().splitlines()]
    teach(model, tokenizer, heldout, arguments.enough, arguments.seed)
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)


if __name__ == "__main__":
    main()
