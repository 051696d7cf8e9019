r"""The built-in reward ``number``: 1.0 iff the answer ended by itself and its final number is the label's.

The final number is the one in the last ``\boxed{…}``, else the one after the last ``####``, else the last in the text.
Numbers are compared as fractions, so that ``1,200``, ``1200.0`` and ``\boxed{1200}`` are the same, and ``1/2`` is ``0.5``.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from miles.types import Prompt, Sample, SampleStatus

_NUMBER = re.compile(r"[-−+]?\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?|[-−+]?\.\d+")
_BOXED, _FRACTION = "\\boxed{", re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_MARK = "####"
MAX_DIGITS = 100  # longer ones are no answers, and would take long to compare


class NumberReward:
    """Compares the final number of an answer with the label's."""

    async def score(self, prompt: Prompt, samples: Sequence[Sample]) -> tuple[Sample, ...]:
        """The samples with their rewards."""
        return tuple(replace(sample, reward=same_number(sample, prompt)) for sample in samples)

    async def close(self) -> None:
        """Nothing was started."""


def same_number(sample: Sample, prompt: Prompt) -> float:
    """1.0 iff the answer ended by itself and has the label's number as its final one."""
    wanted = final_number(str(prompt.label))
    if sample.status is not SampleStatus.COMPLETED or wanted is None:
        return 0.0
    return float(final_number(sample.text) == wanted)


def final_number(text: str) -> Fraction | None:
    """The number a text ends up with; None where it has none."""
    if _BOXED in text:
        text = _in_braces(text[text.rindex(_BOXED) + len(_BOXED) :])
    elif _MARK in text:
        text = text[text.rindex(_MARK) + len(_MARK) :]
    found = _NUMBER.findall(_FRACTION.sub(r"\1/\2", text))
    return _as_fraction(found[-1]) if found else None


def _in_braces(text: str) -> str:
    """What stands before the brace that closes one opened before ``text``; all of it where none does."""
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if not depth:
            return text[:place]
    return text


def _as_fraction(text: str) -> Fraction | None:
    plain = re.sub(r"[,\s]", "", text.replace("−", "-"))
    if len(plain) > MAX_DIGITS:
        return None
    try:
        return Fraction(plain) if "/" not in plain or "." not in plain else None
    except (ValueError, ZeroDivisionError):
        return None
