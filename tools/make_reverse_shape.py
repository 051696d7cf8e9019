"""Write tokenizer and config.json of the `reverse` preset's model: characters, two layers of width 128.

Run from the project root: `python tools/make_reverse_shape.py`; then `python tools/make_reverse_model.py` makes the weights.
"""

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config

FOLDER = Path("src/miles/presets/reverse/model")
PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"


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


def make_config(vocab_size: int) -> Qwen3Config:
    """Two layers of width 128, four heads over two key-value heads, tied embeddings."""
    return Qwen3Config(
        vocab_size=vocab_size, hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=256, tie_word_embeddings=True,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, architectures=["Qwen3ForCausalLM"],
    )  # fmt: skip


def main() -> None:
    """Write both."""
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(FOLDER)
    make_config(len(tokenizer)).save_pretrained(FOLDER)


if __name__ == "__main__":
    main()
