"""The line scan against a second way to find a key: the line of a key written as a number no other line has."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles.config.toml_lines import lines_of_keys

pytestmark = pytest.mark.unit

AWKWARD_VALUES = [
    "1",
    "'a # b'",
    '"x = 1"',
    '"\\" # = ["',
    "[1, 2] # [",
    "[\n  1, # ]\n  2,\n]",
    '"""\nlr = 3\n[table]\n"""',
    "'''\nlr = 3 \"\"\"\n'''",
    '"""quote at the end\\""""',
    '""""two quotes at both ends"""""',
    "{ a = 1, b = [ 2, 3 ] }",
    "1979-05-27T07:32:00Z",
    "[ { x = ']' },\n  { x = \"}\" } ]",
    "''",
    '""',
]
GAPS = ["\n", "\n\n", " # comment [x] = '\n", "\n# 'comment\n"]


@st.composite
def documents(draw):
    """A TOML text and the line of every key, counted while it is written."""
    text, expected, table = "", {}, ()
    for number in range(draw(st.integers(1, 12))):
        if draw(st.integers(0, 4)) == 0:
            table = (f"t{number}", "sub table") if draw(st.booleans()) else (f"t{number}",)
            expected[table] = text.count("\n") + 1
            text += "[" + " . ".join(f'"{part}"' if " " in part else part for part in table) + "]" + draw(st.sampled_from(GAPS))
        name = f"key-{number}"
        expected[(*table, name)] = text.count("\n") + 1
        written = draw(st.sampled_from([name, f'"{name}"', f"'{name}'", f"  {name} "]))
        text += f"{written} = {draw(st.sampled_from(AWKWARD_VALUES))}" + draw(st.sampled_from(GAPS))
    return text.rstrip("\n") if draw(st.booleans()) else text, expected


@given(documents())
def test_every_key_is_found_on_the_line_it_was_written(document):
    text, expected = document
    tomllib.loads(text)
    assert lines_of_keys(text) == expected


def test_dotted_keys_keep_their_path():
    assert lines_of_keys("\ntrain-async . lr = 1\n[[a.b]]\nc = 2") == {
        ("train-async", "lr"): 2,
        ("a", "b"): 3,
        ("a", "b", "c"): 4,
    }


def test_windows_line_ends():
    assert lines_of_keys("a = 1\r\n\r\nb = 2\r\n") == {("a",): 1, ("b",): 3}
