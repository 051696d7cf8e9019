"""A data source of the user's: each index gets one prompt, whatever happens, and a resumed run goes on where it stood."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from miles.errors import CheckpointError, DataError
from miles.rollout.data_source import SourcedPrompts
from miles.rollout.ledger import DropReason
from miles.rollout.prompt_lines import PromptFormat

from .simulated import CheckedLedger, LetterTokenizer, group

pytestmark = pytest.mark.unit
FORMAT = PromptFormat(64)


class Letters:
    """So many prompts an epoch: a0, a1 and so on."""

    def __init__(self, length: int) -> None:
        self.length, self.given = length, 0

    def __next__(self) -> dict[str, Any]:
        if self.given >= self.length:
            raise StopIteration
        self.given += 1
        return {"prompt": f"a{self.given - 1}", "label": self.given - 1}

    def state(self) -> int:
        return self.given

    def restore(self, state: int) -> None:
        self.given = state


def prompts(length: int = 5) -> SourcedPrompts:
    return SourcedPrompts("letters:Letters", lambda: Letters(length), LetterTokenizer(), FORMAT)


@for_all(
    st.integers(1, 7), st.lists(st.sampled_from(["reserve", "finish", "back", "drop", "restart"]), max_size=60), st.randoms()
)
@settings(max_examples=150, deadline=None)
def test_every_index_keeps_its_prompt_over_retries_and_restarts(length: int, events: list[str], rng: Any) -> None:
    source, ledger, seen = prompts(length), CheckedLedger(), dict[int, str]()
    flying: list[int] = []
    for event in events:
        if event == "reserve":
            prompt = source.reserve(ledger)
            assert seen.setdefault(prompt.index, prompt.text) == prompt.text == f"a{prompt.index % length}"
            assert (prompt.epoch, prompt.row) == divmod(prompt.index, length)
            flying.append(prompt.index)
        elif event == "restart":
            state = json.loads(json.dumps([source.state(ledger), ledger.snapshot()]))
            source, ledger, flying = prompts(length), CheckedLedger.restore(state[1], None), []
            source.restore(state[0])
        elif flying:
            index = flying.pop(rng.randrange(len(flying)))
            if event == "back":
                ledger.put_back(index)
            elif event == "drop":
                ledger.drop(index, DropReason.ABORTED)
            else:
                ledger.buffer(group(index))
    assert sorted(seen) == list(range(ledger.issued)), "none is skipped"


def test_prompts_of_settled_groups_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miles.rollout.data_source.PRUNED_FROM", 4)
    source, ledger = prompts(1000), CheckedLedger()
    source._prune_at = 4
    for _ in range(100):
        ledger.drop(source.reserve(ledger).index, DropReason.ABORTED)
    assert len(source._known) <= 5


class Bad:
    """Fails in the way that it is told."""

    def __init__(self, gives: Any) -> None:
        self.gives = gives

    def __next__(self) -> Any:
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives

    def state(self) -> Any:
        raise OSError("the disk is gone")

    def restore(self, state: Any) -> None:
        raise KeyError("position")


@pytest.mark.parametrize(("gives", "words"), [
    (ValueError("no network"), "failed at prompt 0: ValueError"),
    (StopIteration(), "gave no prompt at all"),
    ("text", "gave 'text', not an object"),
    ({"promt": "a"}, 'prompt 0 of epoch 0: has no key "prompt" .*did you mean "promt"'),
    ({"prompt": "a" * 65, "label": 1}, "prompt 0 of epoch 0: the prompt has 65 tokens"),
])  # fmt: skip
def test_what_is_no_prompt_is_named(gives: Any, words: str) -> None:
    source = SourcedPrompts("mine:Bad", lambda: Bad(gives), LetterTokenizer(), FORMAT)
    with pytest.raises(DataError, match=words):
        source.reserve(CheckedLedger())


def test_a_source_that_cannot_be_built_saved_or_resumed_is_named() -> None:
    def build() -> Iterator[Any]:
        raise OSError("no such database")

    with pytest.raises(DataError, match="mine:Gone cannot be built: OSError"):
        SourcedPrompts("mine:Gone", build, LetterTokenizer(), FORMAT)  # type: ignore[arg-type]
    source = SourcedPrompts("mine:Bad", lambda: Bad({"prompt": "a", "label": 1}), LetterTokenizer(), FORMAT)
    with pytest.raises(CheckpointError, match="cannot tell its position: OSError"):
        source.state(CheckedLedger())
    with pytest.raises(CheckpointError, match="cannot go on from the checkpoint: KeyError"):
        source.restore({"position": 1})
    with pytest.raises(CheckpointError, match="--accept-missing-state"):
        prompts().restore(None)
