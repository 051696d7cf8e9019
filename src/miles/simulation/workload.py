"""What a simulation is told: how long answers are, how fast engines and policy work; by hand or from a recorded run.

--lengths constant:200 | uniform:50,400 | lognormal:200,0.8 (median, sigma of the logarithm)
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from miles.errors import ConfigError, Problem

Lengths = Callable[[random.Random], int]
"""Draws the length of an answer, in tokens."""

FORMS = "constant:TOKENS, uniform:LEAST,MOST or lognormal:MEDIAN,SIGMA"


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds that things take.

    decode_seconds: one forward pass of an engine, for all its running samples together; and
    decode_seconds_per_sample: what each running sample adds to it when it decodes.
    train_seconds: one training step on a rollout of ``train_tokens`` response tokens; it grows with them.
    export_seconds: writing weights, while engines go on; pause_seconds: engines stand still for an update.
    token_seconds: what each token that is computed adds to a pass. None: prompts cost nothing, nor does what is computed again
    after an update; otherwise a sample's first token is drawn by the pass over its prompt.
    """

    decode_seconds: float
    decode_seconds_per_sample: float
    train_seconds: float
    train_tokens: float
    export_seconds: float = 0.0
    pause_seconds: float = 0.0
    token_seconds: float | None = None

    def decode_step(self, num_running: int) -> float:
        """Seconds of one step with so many samples."""
        return self.decode_seconds + self.decode_seconds_per_sample * num_running

    def prefill(self, num_rows: int, num_tokens: float, *, again: bool) -> float:
        """Seconds until so many rows that join have drawn their next token, so many tokens being computed for it.

        again: some of them are answers so far, which takes a second pass behind that over the prompts.
        """
        token_seconds = self.token_seconds or 0.0
        first = self.decode_step(num_rows) + token_seconds * (num_tokens - num_rows)
        return first + self.decode_seconds if again else first

    def train_step(self, num_tokens: int) -> float:
        """Seconds of a training step on so many response tokens."""
        return self.train_seconds * num_tokens / self.train_tokens


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds around the work itself, which only a recorded run knows.

    driver_group_seconds: of the driver, for each group that it asks for, reads and scores; driver_train_seconds,
    driver_export_seconds, driver_update_seconds: for a training step with what goes with it, an export, an update.
    answer_seconds: of an engine, for each answer beside its passes. others_seconds: of processes beside, for a step.
    train_wait_seconds, export_wait_seconds, update_wait_seconds, group_wait_seconds: nobody computes.
    """

    driver_group_seconds: float = 0.0
    driver_train_seconds: float = 0.0
    driver_export_seconds: float = 0.0
    driver_update_seconds: float = 0.0
    answer_seconds: float = 0.0
    others_seconds: float = 0.0
    group_wait_seconds: float = 0.0
    train_wait_seconds: float = 0.0
    export_wait_seconds: float = 0.0
    update_wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Answers and speeds.

    slots: samples that one engine decodes at a time; longest: the length limit, in tokens; prompt_tokens: of a prompt.
    cores: shared by the processes of a machine; None where each has its own.
    """

    lengths: Lengths
    speeds: Speeds
    slots: int
    longest: int
    prompt_tokens: float = 0.0
    overheads: Overheads = Overheads()
    cores: int | None = None

    def draw(self, rng: random.Random) -> int:
        """The length of one answer: at least 1, at most the limit."""
        return max(1, min(self.longest, self.lengths(rng)))


def parse_lengths(text: str) -> Lengths:
    """The distribution that ``--lengths`` names.

    Raises:
        ConfigError: it names none, or with numbers that make none.
    """
    kind, _, numbers = text.partition(":")
    try:
        values = [float(number) for number in numbers.split(",")]
    except ValueError:
        values = []
    if kind == "constant" and len(values) == 1 and values[0] >= 1:
        return lambda rng: int(values[0])
    if kind == "uniform" and len(values) == 2 and 1 <= values[0] <= values[1]:
        return lambda rng: rng.randint(int(values[0]), int(values[1]))
    if kind == "lognormal" and len(values) == 2 and values[0] >= 1 and values[1] >= 0:
        return lambda rng: round(rng.lognormvariate(math.log(values[0]), values[1]))
    raise ConfigError([Problem("lengths", text, "--lengths", "names no distribution of answer lengths", f"Give {FORMS}")])


def from_histogram(counts: dict[int, float], mean: float) -> Lengths:
    """Lengths drawn from a histogram by powers of two, stretched so that their mean is ``mean``.

    counts: lower edge of the bucket → samples.
    """
    floors, weights = list(counts), list(counts.values())
    middle = sum(weight * (1.5 * floor - 0.5 if floor else 0) for floor, weight in counts.items()) / sum(weights)
    stretch = mean / middle if middle else 1.0

    def draw(rng: random.Random) -> int:
        floor = rng.choices(floors, weights)[0]
        return round(stretch * rng.uniform(floor, max(2 * floor - 1, floor)))

    return draw
