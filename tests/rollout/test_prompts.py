"""Prompts: the order of issue, and every line that cannot be used named by file and line."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.errors import DataError
from miles.rollout.ledger import Ledger
from miles.rollout.prompts import PromptFormat, PromptSource

from .simulated import PRESET, LetterTokenizer, source

pytestmark = pytest.mark.unit
FORMAT = PromptFormat(max_prompt_len=12)


def read(tmp_path: Path, *lines: Any, line_format: PromptFormat = FORMAT) -> PromptSource:
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n", encoding="utf-8")
    return PromptSource.from_jsonl(path, LetterTokenizer(), line_format)


@given(st.integers(1, 30), st.integers(0, 5), st.one_of(st.none(), st.integers(0, 10**6)))
@settings(max_examples=100, deadline=None)
def test_every_epoch_holds_every_prompt_once(num_prompts: int, epoch: int, seed: int | None) -> None:
    prompts = source(num_prompts, seed)
    first = epoch * num_prompts
    issued = [prompts.prompt(index) for index in range(first, first + num_prompts)]
    assert Counter(prompt.row for prompt in issued) == Counter(range(num_prompts))
    assert {prompt.epoch for prompt in issued} == {epoch}
    assert [prompt.index for prompt in issued] == list(range(first, first + num_prompts))
    if seed is None:
        assert [prompt.row for prompt in issued] == list(range(num_prompts))


@given(st.lists(st.integers(0, 200), min_size=1, max_size=20), st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_a_prompt_depends_on_its_index_alone(asked: list[int], seed: int) -> None:
    used = source(9, seed)
    assert [used.prompt(index) for index in asked] == [source(9, seed).prompt(index) for index in asked]


def test_shuffling_differs_by_epoch_and_by_seed() -> None:
    def rows(seed: int | None, epoch: int) -> list[int]:
        return [source(50, seed).prompt(epoch * 50 + place).row for place in range(50)]

    orders = [rows(None, 0), rows(1, 0), rows(1, 1), rows(2, 0)]
    assert len({tuple(order) for order in orders}) == 4
    assert rows(None, 0) == rows(None, 3)


def test_prompts_are_reserved_in_the_order_of_the_ledger() -> None:
    ledger, prompts = Ledger(), source(3)
    assert [prompts.reserve(ledger).index for _ in range(5)] == [0, 1, 2, 3, 4]
    ledger.put_back(3)
    ledger.put_back(1)
    assert [prompts.reserve(ledger).index for _ in range(3)] == [1, 3, 5]


def test_a_line_becomes_a_prompt(tmp_path: Path) -> None:
    line_format = PromptFormat(12, "question", "answer", "more")
    lines = ({"question": "<bos>ab", "answer": 7, "more": {"level": 2}}, "", {"question": "ü", "answer": None, "more": {}})
    first, second = read(tmp_path, *lines, line_format=line_format).all_prompts()
    assert (first.row, first.text, first.token_ids, first.label, first.metadata) == (0, "<bos>ab", (1, 97, 98), 7, {"level": 2})
    assert (second.row, second.index, second.token_ids, second.label) == (2, 1, (252,), None)


def test_chat_messages_go_through_the_template(tmp_path: Path) -> None:
    line_format = PromptFormat(40, "prompt", None, apply_chat_template=True)
    chat = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    made = read(tmp_path, {"prompt": chat}, {"prompt": "hi"}, line_format=line_format).all_prompts()
    assert [prompt.text for prompt in made] == ["[system]be[user]hi", "[user]hi"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{nonsense", "p.jsonl:2: is not JSON"),
        ("[1]", "holds a list, not an object"),
        ("null", "holds null, not an object"),
        ({"promt": "a", "label": 1}, """has no key "prompt" (--input-key), only 'promt', 'label'; did you mean "promt"?"""),
        ({"prompt": "a"}, """has no key "label" (--label-key), only 'prompt'"""),
        ({}, "only nothing"),
        ({"prompt": "  ", "label": 1}, 'the prompt under "prompt" is empty'),
        ({"prompt": 3, "label": 1}, 'key "prompt" holds a number. Write a string'),
        ({"prompt": [{"role": "user", "content": "x"}], "label": 1}, "Pass --apply-chat-template"),
        ({"prompt": "a" * 13, "label": 1}, "the prompt has 13 tokens, more than 12 (--rollout-max-prompt-len)"),
        ({"prompt": "a§", "label": 1}, "the tokenizer cannot encode 'a§' (no token for §)"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: Any, words: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, {"prompt": "ok", "label": 1}, line)
    assert str(caught.value).startswith(f"{tmp_path / 'p.jsonl'}:2: ")
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "holds no chat messages"),
        ([{"role": "user"}], "holds no chat messages"),
        (5, "holds no chat messages"),
        ([{"role": "alien", "content": "x"}], "the chat template refuses these messages (unknown role)"),
        ([{"role": "user", "content": "x"}], 'key "extra" holds a list, not an object (--metadata-key)'),
    ],
)
def test_bad_messages_and_metadata_are_named(tmp_path: Path, prompt: Any, words: str) -> None:
    line_format = PromptFormat(40, "prompt", None, "extra", apply_chat_template=True)
    with pytest.raises(DataError, match="p.jsonl:1: ") as caught:
        read(tmp_path, {"prompt": prompt, "extra": []}, line_format=line_format)
    assert words in str(caught.value)


def test_all_bad_lines_are_told_together_and_the_rest_counted(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, *[{"prompt": "ok", "label": 1}, "bad"] * 25)
    told = str(caught.value).splitlines()
    assert [line.split(":")[1] for line in told[:20]] == [str(2 * number) for number in range(1, 21)]
    assert told[20:] == ["… and 5 more lines that cannot be used"]


def test_files_that_hold_nothing_or_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no prompt"):
        read(tmp_path, "")
    with pytest.raises(DataError, match=r"gone.jsonl: cannot be read \(No such file"):
        PromptSource.from_jsonl(tmp_path / "gone.jsonl", LetterTokenizer(), FORMAT)


def test_a_prompt_without_tokens_is_refused(tmp_path: Path) -> None:
    class Silent(LetterTokenizer):
        def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, Any]:
            return {"input_ids": []}

    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "label": 1}')
    with pytest.raises(DataError, match="'a' has no tokens"):
        PromptSource.from_jsonl(path, Silent(), FORMAT)


def test_the_preset_reads_with_its_own_tokenizer() -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(PRESET / "model/tokenizer.json"))
    prompts = PromptSource.from_jsonl(PRESET / "prompts.jsonl", tokenizer, PromptFormat(24), shuffle_seed=42)
    first = prompts.prompt(0)
    assert first.token_ids[0] == 1, "<bos> is written in the prompt and added by nobody"
    assert 1 not in first.token_ids[1:]
    assert tokenizer.decode(list(first.token_ids), skip_special_tokens=True) == first.text.removeprefix("<bos>")


def test_rollout_code_needs_no_torch() -> None:
    heavy = ("torch", "ray", "transformers", "sglang")
    code = f"import sys, miles.rollout.build; sys.exit(sum(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
