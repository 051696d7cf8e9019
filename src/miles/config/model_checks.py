"""Whether a model suits what is asked of it, from its files alone: its vocabulary, and the chat template."""

from collections.abc import Iterator

from miles.config.facts import read_vocab_size
from miles.config.tokenizer_files import has_chat_template, largest_token_id
from miles.config.view import View
from miles.errors import Problem


def vocabulary(view: View) -> Iterator[Problem]:
    """The model has a row for every token of its tokenizer."""
    folder = view["hf_checkpoint"]
    rows, largest = read_vocab_size(folder), largest_token_id(folder)
    if rows is not None and largest is not None and largest >= rows:
        why = (
            f"has a tokenizer whose largest token id is {largest}, and a model of only {rows} tokens (vocab_size in config.json)"
        )
        yield view.problem("hf_checkpoint", why, "Give a folder whose model and tokenizer belong together")


def chat_template(view: View) -> Iterator[Problem]:
    """Whoever asks for the chat template has one."""
    if has_chat_template(view["hf_checkpoint"]) is not False:
        return
    asking = "apply_chat_template" if view["apply_chat_template"] else ""
    if not asking and "example_format" in view and view["example_format"] == "messages":
        asking = "example_format"
    if asking:
        other = (
            "write plain prompts and leave it out" if asking == "apply_chat_template" else "set --example-format to prompt-label"
        )
        why = f"needs a chat template, and the tokenizer of {view.named('hf_checkpoint')} has none"
        yield view.problem(asking, why, f"Put a chat_template.jinja into that folder, or {other}")
