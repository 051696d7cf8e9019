"""Lines of a prompt file: parsed, formatted and tokenized, every problem with its file and line.

A line is a JSON object; under ``--input-key`` it holds a string, or a list of chat messages where
``--apply-chat-template`` is set. Special tokens are written in the text (``<bos>``) or by the chat template; none is added.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson

from miles.config.options.data import DataOptions
from miles.errors import DataError

MAX_REPORTED = 20
Line = TypeVar("Line")


class Tokenizer(Protocol):
    """What rollout asks of a tokenizer; those of transformers have it."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, Any]:
        """``{"input_ids": [...], …}``."""
        ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """The text of token ids."""
        ...

    def apply_chat_template(self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool) -> str:
        """The text of chat messages, up to where the answer begins."""
        ...


@dataclass(frozen=True, slots=True)
class PromptFormat:
    """How lines are read.

    max_prompt_len: in tokens; longer prompts are refused.
    label_key, metadata_key: None where lines have none.
    """

    max_prompt_len: int
    input_key: str = "prompt"
    label_key: str | None = "label"
    metadata_key: str | None = None
    apply_chat_template: bool = False

    @classmethod
    def of(cls, data: DataOptions, max_prompt_len: int) -> "PromptFormat":
        """As a run's options say."""
        return cls(max_prompt_len, data.input_key, data.label_key, data.metadata_key, data.apply_chat_template)


@dataclass(frozen=True, slots=True)
class PromptLine:
    """A line that can be used; ``row`` is its place in the file, from 0."""

    row: int
    text: str
    token_ids: tuple[int, ...]
    label: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def read_lines(path: Path, tokenizer: Tokenizer, line_format: PromptFormat) -> tuple[PromptLine, ...]:
    """All prompts of a file; blank lines are skipped.

    Raises:
        DataError: names every line that cannot be used, the first 20 in full.
    """
    return usable_lines(path, lambda raw, row: parse_line(raw, row, tokenizer, line_format), "prompt")


def usable_lines(path: Path, parse: Callable[[bytes, int], Line], what: str) -> tuple[Line, ...]:
    """What ``parse`` makes of every line that is not blank, given it and its place from 0.

    Raises:
        DataError: names every line that cannot be used, the first 20 in full; or there is none at all.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check --prompt-data or --eval-prompt-data") from error
    lines, problems = [], []
    for row, raw in enumerate(content.splitlines()):
        try:
            if raw.strip():
                lines.append(parse(raw, row))
        except DataError as error:
            problems.append(f"{path}:{row + 1}: {error}")
    if problems:
        raise DataError("\n".join(shortened(problems)))
    if not lines:
        raise DataError(f"{path}: holds no {what}. Write one JSON object per line")
    return tuple(lines)


def shortened(problems: list[str]) -> Iterator[str]:
    """The first problems, and how many more there are."""
    yield from problems[:MAX_REPORTED]
    if len(problems) > MAX_REPORTED:
        yield f"… and {len(problems) - MAX_REPORTED} more lines that cannot be used"


def parse_line(raw: bytes, row: int, tokenizer: Tokenizer, line_format: PromptFormat) -> PromptLine:
    """One line.

    Raises:
        DataError: what is wrong with it and what to do; without the file's name.
    """
    return prompt_line(object_of(raw), row, tokenizer, line_format)


def prompt_line(fields: Mapping[str, Any], row: int, tokenizer: Tokenizer, line_format: PromptFormat) -> PromptLine:
    """The prompt that the fields of a line stand for.

    Raises:
        DataError: what is wrong with it and what to do.
    """
    text = prompt_text(take(fields, line_format.input_key, "--input-key"), tokenizer, line_format)
    label = None if line_format.label_key is None else take(fields, line_format.label_key, "--label-key")
    metadata = {} if line_format.metadata_key is None else take(fields, line_format.metadata_key, "--metadata-key")
    if not isinstance(metadata, dict):
        raise DataError(f'key "{line_format.metadata_key}" holds {kind(metadata)}, not an object (--metadata-key)')
    return PromptLine(row, text, encode(text, tokenizer, line_format.max_prompt_len), label, metadata)


def object_of(raw: bytes) -> dict[str, Any]:
    """The JSON object that a line holds.

    Raises:
        DataError: it is none.
    """
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise DataError(f"is not JSON ({error}). Write one JSON object per line") from error
    if not isinstance(fields, dict):
        raise DataError(f"holds {kind(fields)}, not an object. Write one JSON object per line")
    return fields


def take(fields: Mapping[str, Any], key: str, option: str) -> Any:
    """The value under a key; the error names the nearest key."""
    if key in fields:
        return fields[key]
    near = difflib.get_close_matches(key, fields, n=1, cutoff=0.5)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    raise DataError(f'has no key "{key}" ({option}), only {", ".join(map(repr, fields)) or "nothing"}{hint}')


def prompt_text(prompt: Any, tokenizer: Tokenizer, line_format: PromptFormat) -> str:
    """The text of a prompt, through the chat template where that is asked for."""
    if line_format.apply_chat_template:
        text = chat_text(prompt, tokenizer)
    elif isinstance(prompt, str):
        text = prompt
    elif isinstance(prompt, list):
        raise DataError(f'key "{line_format.input_key}" holds chat messages. Pass --apply-chat-template, or write a string')
    else:
        raise DataError(f'key "{line_format.input_key}" holds {kind(prompt)}. Write a string or a list of chat messages')
    if not text.strip():
        raise DataError(f'the prompt under "{line_format.input_key}" is empty. Fill it in or remove the line')
    return text


def chat_text(prompt: Any, tokenizer: Tokenizer) -> str:
    """Chat messages as the tokenizer's template writes them; a string is one message of the user."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(messages, list) or not messages or not all(is_message(message) for message in messages):
        raise DataError('holds no chat messages. Write a list of {"role": …, "content": …} objects, or a string')
    return templated(tokenizer, messages, up_to_an_answer=True)


def templated(tokenizer: Tokenizer, messages: list[dict[str, str]], *, up_to_an_answer: bool) -> str:
    """Messages as the chat template writes them.

    Raises:
        DataError: it refuses them.
    """
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=up_to_an_answer)
    except Exception as error:
        raise DataError(
            f"the chat template refuses these messages ({error}). Mend the messages or the tokenizer's template"
        ) from error


def chat_reply(message: dict[str, str], tokenizer: Tokenizer) -> str:
    """What stands between the words of the model's turn and its next turn when ``message`` is said in between.

    The end of the model's turn, as the template writes it, is its beginning.

    Raises:
        DataError: the template refuses it, or does not write the model's turns out.
    """
    mark = "[the model's turn]"
    turn = {"role": "assistant", "content": mark}
    text = templated(tokenizer, [{"role": "user", "content": "?"}, turn, message], up_to_an_answer=True)
    if mark not in text:
        raise DataError("the chat template leaves out the model's earlier turns. Use one that writes them, or no template")
    return text.rpartition(mark)[2]


def is_message(message: Any) -> bool:
    """Whether this is a chat message with a role and a text."""
    return isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)


def ids_of(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Token ids of a text as it is."""
    return tuple(int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"])


def encode(text: str, tokenizer: Tokenizer, max_prompt_len: int) -> tuple[int, ...]:
    """Token ids of a prompt that is neither empty nor too long."""
    try:
        token_ids = ids_of(text, tokenizer)
    except Exception as error:
        raise DataError(f"the tokenizer cannot encode {shown(text)} ({error}). Mend or remove the line") from error
    if not token_ids:
        raise DataError(f"{shown(text)} has no tokens. Mend or remove the line")
    if len(token_ids) > max_prompt_len:
        raise DataError(
            f"the prompt has {len(token_ids)} tokens, more than {max_prompt_len} (--rollout-max-prompt-len). "
            "Raise that option if the model's context allows it, or remove the line"
        )
    return token_ids


def shown(text: str) -> str:
    """The beginning of a text, for an error."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def kind(value: Any) -> str:
    """What a JSON value is, in JSON's words."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
