"""Finished groups on disk come back bit for bit, or not at all."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles.errors import CheckpointError
from miles.rollout.group_file import read_groups, write_groups
from miles.types import Group, Sample, SampleStatus, VersionSpan

from .simulated import group, sample, source

pytestmark = pytest.mark.unit
PROMPTS = source(7, seed=3)
LOGPROBS = st.floats(-50, 0, allow_nan=False)


@st.composite
def samples(draw: st.DrawFn, index: int, place: int) -> Sample:
    ids = draw(st.lists(st.integers(0, 2**31), max_size=6))
    cut = draw(st.integers(0, len(ids)))
    spans = [VersionSpan(2, 0, cut), VersionSpan(5, cut, len(ids))]
    return Sample(
        index,
        place,
        PROMPTS.prompt(index).token_ids,
        tuple(ids),
        tuple(draw(LOGPROBS) for _ in ids),
        tuple(draw(st.integers(0, 1)) for _ in ids),
        tuple(span for span in spans if span.end > span.start),
        draw(st.sampled_from(SampleStatus)),
        draw(st.text(max_size=5)),
        draw(st.none() | st.floats(allow_nan=False, allow_infinity=False)),
        draw(st.dictionaries(st.text(max_size=3), st.none() | st.floats(-1, 1) | st.text(max_size=3), max_size=2)),
    )


@st.composite
def groups(draw: st.DrawFn) -> Group:
    index = draw(st.integers(0, 30))
    answers = tuple(draw(samples(index, place)) for place in range(draw(st.integers(1, 3))))
    return Group(PROMPTS.prompt(index), answers, draw(st.integers(0, 9)))


@given(st.lists(groups(), max_size=4))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, written: list[Group]) -> None:
    path = tmp_path_factory.mktemp("groups") / "groups.jsonl"
    assert read_groups(path, write_groups(path, written), PROMPTS) == written


def own(index: int = 0, **changes: object) -> Group:
    prompt = PROMPTS.prompt(index)
    return Group(prompt, (sample(index, prompt_ids=prompt.token_ids, **changes),), 0)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    digest = write_groups(path, [own(0), own(1)])
    text = path.read_bytes()
    path.write_bytes(text[:-1])
    with pytest.raises(CheckpointError, match="damaged.*--accept-missing-state"):
        read_groups(path, digest, PROMPTS)
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read.*--accept-missing-state"):
        read_groups(path, digest, PROMPTS)


def test_other_prompts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    digest = write_groups(path, [group(0)])
    with pytest.raises(CheckpointError, match=r"prompt 0 \(row \d of.*has changed"):
        read_groups(path, digest, PROMPTS)


def test_metadata_is_json_or_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    digest = write_groups(path, [own(metadata={"score": np.float64(0.5)})])
    assert read_groups(path, digest, PROMPTS)[0].samples[0].metadata == {"score": 0.5}
    with pytest.raises(CheckpointError, match="finished groups cannot be saved: .*metadata"):
        write_groups(path, [own(metadata={"judge": object()})])


def test_a_number_that_json_has_no_word_for_is_refused_when_read(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    digest = write_groups(path, [own(logprobs=(-0.5, float("-inf")))])
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_groups(path, digest, PROMPTS)
