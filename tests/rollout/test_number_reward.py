"""The final number of an answer, however it is written."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles.config.options.reward import RewardOptions
from miles.rollout.build import build_rewards
from miles.rollout.number_reward import NumberReward, final_number, same_number
from miles.types import SampleStatus

from .simulated import prompt, sample

pytestmark = pytest.mark.unit


WORDS = st.text(st.characters(categories=("L", "P", "Zs"), exclude_characters="\\#/.,{}-−+"), max_size=20)


@given(st.integers(-(10**30), 10**30), WORDS)
def test_a_number_is_found_in_every_spelling(number, words):
    value = Fraction(number)
    boxed, marked = f"7 \\boxed{{{number}}} 8", f"x = 7 #### {number}"
    for text in (f"{words} {number}", f"{number:,}", marked, boxed, f"{number}.000", f"{number} {words}"):
        assert final_number(text) == value, text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no number", None),
        ("", None),
        ("\\boxed{x} 5", None),
        ("\\boxed{3} then \\boxed{\\frac{1}{2}}", Fraction(1, 2)),
        ("\\boxed{\\text{so } 12}", Fraction(12)),
        ("\\boxed{12", Fraction(12)),
        ("a half is 1 / 2", Fraction(1, 2)),
        ("1/0", None),
        (".5", Fraction(1, 2)),
        ("−3", Fraction(-3)),
        ("$1,200.50 a year.", Fraction(2401, 2)),
        ("9" * 1000, None),
    ],
)
def test_cases(text, value):
    assert final_number(text) == value


@pytest.mark.parametrize(
    ("text", "label", "status", "reward"),
    [
        ("so it is \\boxed{72}", "48 + 24 = 72\n#### 72", SampleStatus.COMPLETED, 1.0),
        ("so it is 72", 72, SampleStatus.COMPLETED, 1.0),
        ("so it is 71", "72", SampleStatus.COMPLETED, 0.0),
        ("so it is 72", "72", SampleStatus.TRUNCATED, 0.0),
        ("many", "many", SampleStatus.COMPLETED, 0.0),
    ],
)
def test_an_answer_is_right_or_not(text, label, status, reward):
    asked = prompt(0, label=label)
    answered = sample(0, text=text, status=status)
    assert same_number(answered, asked) == reward


async def test_the_option_chooses_it():
    rewards = build_rewards(RewardOptions(rm_type="number"))
    assert isinstance(rewards, NumberReward)
    await rewards.close()
