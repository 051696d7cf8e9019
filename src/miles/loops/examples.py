"""Data files of ``miles sft``: lines into examples, every problem with its file and line.

messages       given and answers as the chat template writes them, turn by turn; every turn of the assistant is an answer
prompt-label   the prompt is given, the label and the end token are the answer

Each part is tokenized by itself, as it is when an engine samples: the prompt's tokens first, then those of the answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from miles.config.commands import SftConfig
from miles.errors import DataError
from miles.policy.examples import Example
from miles.rollout.prompt_lines import (
    PromptFormat,
    Tokenizer,
    ids_of,
    is_message,
    kind,
    object_of,
    prompt_text,
    take,
    templated,
    usable_lines,
)
from miles.rollout.prompts import PromptOrder


class EndingTokenizer(Tokenizer, Protocol):
    """A tokenizer that knows how an answer ends."""

    eos_token_id: int | None


@dataclass(frozen=True, slots=True)
class ExampleFormat:
    """How lines are read.

    label_key: None where lines hold conversations under ``input_key``.
    max_tokens: longer examples are refused.
    """

    input_key: str
    label_key: str | None
    apply_chat_template: bool
    max_tokens: int

    @classmethod
    def from_config(cls, config: SftConfig, max_tokens: int) -> "ExampleFormat":
        """What the options ask for."""
        data = config.data
        if data.example_format == "messages":
            return cls(data.messages_key, None, True, max_tokens)
        return cls(data.input_key, data.label_key, data.apply_chat_template, max_tokens)


def read_examples(path: Path, tokenizer: EndingTokenizer, example_format: ExampleFormat) -> tuple[Example, ...]:
    """All examples of a file; blank lines are skipped.

    Raises:
        DataError: names every line that cannot be used, the first 20 in full.
    """
    return usable_lines(path, lambda raw, _: parse_example(raw, tokenizer, example_format), "example")


def parse_example(raw: bytes, tokenizer: EndingTokenizer, example_format: ExampleFormat) -> Example:
    """One line.

    Raises:
        DataError: what is wrong with it and what to do; without the file's name.
    """
    fields = object_of(raw)
    made = example_of(parts_of(fields, tokenizer, example_format), tokenizer)
    if made.length > example_format.max_tokens:
        raise DataError(
            f"the example has {made.length} tokens, more than {example_format.max_tokens} (--rollout-max-context-len). "
            "Raise that option if the model's context allows it, or remove the line"
        )
    return made


def parts_of(fields: Mapping[str, Any], tokenizer: EndingTokenizer, example_format: ExampleFormat) -> Sequence[tuple[str, bool]]:
    """The texts of a line in order, and whether each is an answer."""
    if example_format.label_key is None:
        return list(conversation_parts(take(fields, example_format.input_key, "--messages-key"), tokenizer))
    line_format = PromptFormat(example_format.max_tokens, apply_chat_template=example_format.apply_chat_template)
    prompt = prompt_text(take(fields, example_format.input_key, "--input-key"), tokenizer, line_format)
    label = take(fields, example_format.label_key, "--label-key")
    if not isinstance(label, str):
        raise DataError(f'key "{example_format.label_key}" holds {kind(label)}. Write the answer as a string')
    return [(prompt, False), (label, True)]


def conversation_parts(messages: Any, tokenizer: EndingTokenizer) -> Iterator[tuple[str, bool]]:
    """The texts between and of the assistant's turns, as the chat template writes them."""
    if not isinstance(messages, list) or not messages or not all(is_message(message) for message in messages):
        raise DataError('holds no conversation. Write a list of {"role": …, "content": …} objects')
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers or answers[0] == 0:
        raise DataError("has no turn of the assistant after another's. Add the answer that is to be learned")
    written, whole = "", templated(tokenizer, messages, up_to_an_answer=False)
    for place in answers:
        before = templated(tokenizer, messages[:place], up_to_an_answer=True)
        after = templated(tokenizer, messages[: place + 1], up_to_an_answer=False)
        if not (before.startswith(written) and after.startswith(before) and whole.startswith(after)):
            raise DataError(
                f"the chat template does not write turn {place + 1} the same in the middle of a conversation as at its end. "
                "Split the conversation into one line for each answer"
            )
        yield before[len(written) :], False
        yield after[len(before) :], True
        written = after


def example_of(parts: Sequence[tuple[str, bool]], tokenizer: EndingTokenizer) -> Example:
    """The tokens of the parts; an answer ends with the end token, and what the template writes after it is given."""
    ids: list[int] = []
    trained: list[bool] = []
    for number, (text, is_answer) in enumerate(parts):
        part = list(ids_of(text, tokenizer))
        learned = len(part) if is_answer else 0
        if is_answer and tokenizer.eos_token_id in part:
            learned = part.index(tokenizer.eos_token_id) + 1
        elif is_answer and number == len(parts) - 1 and tokenizer.eos_token_id is not None:
            part.append(tokenizer.eos_token_id)
            learned += 1
        ids += part
        trained += [True] * learned + [False] * (len(part) - learned)
    start = trained.index(True) if True in trained else 0
    if not start:
        raise DataError("has no token before its first answer. Write a prompt that is not empty")
    return Example(np.array(ids[:start], np.int64), np.array(ids[start:], np.int64), np.array(trained[start:], np.bool_))


class ExampleSource:
    """Which examples a step learns from: consecutive ones over the epochs, each epoch in an order of its own."""

    def __init__(self, examples: Sequence[Example], batch_size: int, seed: int | None) -> None:
        """``seed``: of the orders; None keeps that of the file."""
        self._examples, self._size, self._seed = examples, batch_size, seed
        self._orders: dict[int, Sequence[int]] = {}

    def of_step(self, step: int) -> list[Example]:
        """The examples of a step, from 0; a pure function of it."""
        places = range(step * self._size, (step + 1) * self._size)
        return [self._examples[self._order(place // len(self._examples))[place % len(self._examples)]] for place in places]

    def _order(self, epoch: int) -> Sequence[int]:
        if epoch not in self._orders:
            recent = {known: rows for known, rows in self._orders.items() if known == epoch - 1}
            self._orders = recent | {epoch: PromptOrder(len(self._examples), self._seed).permutation(epoch)}
        return self._orders[epoch]
