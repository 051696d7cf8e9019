"""Examples: answers are learned, up to their end token, and nothing else; what cannot be used is named with its line."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from miles.errors import DataError
from miles.loops.examples import ExampleFormat, ExampleSource, parse_example, read_examples
from miles.policy.examples import batch_of
from tests.policy.builders import PRESET

pytestmark = pytest.mark.unit
EOS = 2
TEMPLATE = (
    "{% for m in messages %}<bos>{{ m['role'] }}:{{ m['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<bos>assistant:{% endif %}"
)
TOKENIZER = AutoTokenizer.from_pretrained(PRESET)
TOKENIZER.chat_template = TEMPLATE
MESSAGES = ExampleFormat("messages", None, True, 200)
PAIRS = ExampleFormat("prompt", "label", False, 200)
TEXTS = st.text("abc xyz", min_size=1, max_size=6)
TURNS = st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), TEXTS), min_size=1, max_size=5)


def example(line, example_format=MESSAGES):
    return parse_example(json.dumps(line).encode(), TOKENIZER, example_format)


def conversation(*turns):
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def learned(made):
    """The texts of the trained stretches."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], made.trained.astype(int), [0]))))
    return [TOKENIZER.decode(made.response_ids[a:b].tolist()) for a, b in zip(edges[::2], edges[1::2], strict=True)]


@given(TURNS)
def test_the_assistant_s_turns_are_learned_and_nothing_else(turns):
    turns = [("user", "a"), *turns, ("assistant", "b")]
    made = example(conversation(*turns))
    whole = TOKENIZER.apply_chat_template(conversation(*turns)["messages"], tokenize=False)
    tokens = [*made.prompt_ids.tolist(), *made.response_ids.tolist()]
    assert TOKENIZER.decode(tokens) == whole.removesuffix("\n") or TOKENIZER.decode(tokens) == whole
    assert learned(made) == [f"{text}<eos>" for role, text in turns if role == "assistant"]


def test_a_label_is_learned_with_its_end():
    made = example({"prompt": "<bos>rev:ab=", "label": "ba"}, PAIRS)
    assert TOKENIZER.decode(made.prompt_ids.tolist()) == "<bos>rev:ab="
    assert learned(made) == ["ba<eos>"]
    assert made.response_ids[-1] == EOS
    assert learned(example({"prompt": "<bos>a=", "label": "b<eos>"}, PAIRS)) == ["b<eos>"], "an end that is there is not doubled"


@pytest.mark.parametrize(
    ("line", "example_format", "words"),
    [
        ({"prompt": "a"}, PAIRS, 'has no key "label" (--label-key)'),
        ({"prompt": "a", "label": 3}, PAIRS, 'key "label" holds a number. Write the answer as a string'),
        ({"prompt": "x" * 300, "label": "a"}, PAIRS, "302 tokens, more than 200 (--rollout-max-context-len)"),
        ({"messages": "a"}, MESSAGES, "holds no conversation"),
        (conversation(("user", "a")), MESSAGES, "has no turn of the assistant after another's"),
        (conversation(("assistant", "a"), ("user", "b")), MESSAGES, "has no turn of the assistant after another's"),
        ([1], MESSAGES, "holds a list, not an object"),
    ],
)
def test_a_line_that_cannot_be_used_says_why(line, example_format, words):
    with pytest.raises(DataError) as caught:
        example(line, example_format)
    assert words in str(caught.value)


def test_a_template_that_rewrites_earlier_turns_is_refused():
    forgetful = AutoTokenizer.from_pretrained(PRESET)
    forgetful.chat_template = "{{ messages|length }}" + TEMPLATE
    line = conversation(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    with pytest.raises(DataError, match="Split the conversation into one line for each answer"):
        parse_example(json.dumps(line).encode(), forgetful, MESSAGES)


def test_problems_carry_file_and_line(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "a", "label": "b"}\n\n{"prompt": "a"}\nno\n')
    with pytest.raises(DataError) as caught:
        read_examples(path, TOKENIZER, PAIRS)
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == [f"{path}:3", f"{path}:4"]


@given(st.integers(1, 7), st.integers(1, 5), st.one_of(st.none(), st.integers(0, 3)))
def test_every_epoch_has_every_example_once(count, size, seed):
    examples = [example({"prompt": "<bos>" + "a" * number, "label": "b"}, PAIRS) for number in range(1, count + 1)]
    source = ExampleSource(examples, size, seed)
    seen = [len(made.prompt_ids) for step in range(count * 3) for made in source.of_step(step)]
    for epoch in range(size * 3):
        assert sorted(seen[epoch * count : (epoch + 1) * count]) == list(range(2, count + 2))
    assert [len(made.prompt_ids) for made in source.of_step(1)] == seen[size : 2 * size], (
        "a step's examples follow from its number"
    )


def test_a_batch_keeps_what_is_learned():
    examples = [example({"prompt": "<bos>ab=", "label": "cd"}, PAIRS), example(conversation(("user", "a"), ("assistant", "bc")))]
    batch = batch_of(examples, 4)
    assert batch.rollout_id == 4
    assert batch.trained_lengths.tolist() == [3, 3]
    assert batch.response_offsets.tolist() == [0, 3, 3 + len(examples[1].response_ids)]
