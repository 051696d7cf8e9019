"""A data source of your own: strings to reverse that grow longer as the run goes on; no prompt file.

    miles train --preset reverse --data-source-path growing_words:GrowingWords

``__next__`` gives one prompt with the keys of a prompt file's line. ``state`` is written with every checkpoint and ``restore``
is called when the run goes on from it, so that it continues where it stood. A source that has an end raises ``StopIteration``:
then a new one is built, and the epoch counts one more.
"""

import random
from typing import Any, Self

from miles.config.commands import AnyConfig

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHORTEST, LONGEST = 3, 6
PER_LENGTH = 400


class GrowingWords:
    """Built with the run's configuration; the seed makes two runs the same."""

    def __init__(self, config: AnyConfig) -> None:
        self._seed = config.sampling.rollout_seed
        self._given = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, Any]:
        """The next string: the first ones have three letters, later ones up to six."""
        rng = random.Random(f"{self._seed}/{self._given}")
        length = min(SHORTEST + self._given // PER_LENGTH, LONGEST)
        word = "".join(rng.choices(LETTERS, k=length))
        self._given += 1
        return {"prompt": f"<bos>rev:{word}=", "label": word[::-1]}

    def state(self) -> int:
        """How many were given."""
        return self._given

    def restore(self, state: int) -> None:
        """Go on after so many."""
        self._given = state
