"""What an engine's steps cost, as sums from which the cost of a pass, of a row and of a token can be fitted.

    CPU seconds of a step  ≈  a · forward passes  +  b · rows that drew a token  +  c · tokens computed

Kept are the sums of products of a least-squares fit, so that a day of steps takes as much room as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from miles.engines.embedded.request import Generation

NUM_TERMS = 3


class StepWork(NamedTuple):
    """One step: its terms, and of the rows that joined in it the distinct prompts and their tokens."""

    num_passes: int
    num_rows: int
    num_tokens: int
    num_prompts: int
    num_prompt_tokens: int

    def and_decoded(self, num_rows: int) -> "StepWork":
        """With one more pass, of a token for each of so many rows."""
        return self._replace(
            num_passes=self.num_passes + 1, num_rows=self.num_rows + num_rows, num_tokens=self.num_tokens + num_rows
        )


def joined(generations: Sequence[Generation]) -> StepWork:
    """The prefill of rows that join: each distinct prompt once, and in a pass behind it what was answered before a retraction."""
    prompts = {generation.request.input_ids for generation in generations}
    prompt_tokens = sum(map(len, prompts))
    answered = sum(len(generation.output_ids) for generation in generations)
    num_passes = int(bool(prompts)) + int(answered > 0)
    return StepWork(num_passes, len(generations), prompt_tokens + answered, len(prompts), prompt_tokens)


@dataclass(slots=True)
class Work:
    """Sums over steps. products: [3][3], of passes, rows and tokens with each other; moments: [3], with CPU seconds."""

    num_steps: int = 0
    seconds: float = 0.0
    num_answers: int = 0
    num_prompts: int = 0
    num_prompt_tokens: int = 0
    products: list[list[float]] = field(default_factory=lambda: [[0.0] * NUM_TERMS for _ in range(NUM_TERMS)])
    moments: list[float] = field(default_factory=lambda: [0.0] * NUM_TERMS)

    def add(self, step: StepWork, num_answers: int, seconds: float) -> None:
        """A step that finished so many answers and took so many CPU seconds."""
        self.num_steps += 1
        self.seconds += seconds
        self.num_answers += num_answers
        self.num_prompts += step.num_prompts
        self.num_prompt_tokens += step.num_prompt_tokens
        for place, count in enumerate(step[:NUM_TERMS]):
            self.moments[place] += count * seconds
            for other, another in enumerate(step[:NUM_TERMS]):
                self.products[place][other] += count * another

    def to_wire(self) -> dict[str, object]:
        """For ``/server_info``."""
        return {
            "num_steps": self.num_steps,
            "seconds": self.seconds,
            "num_answers": self.num_answers,
            "num_prompts": self.num_prompts,
            "num_prompt_tokens": self.num_prompt_tokens,
            "products": [row.copy() for row in self.products],
            "moments": self.moments.copy(),
        }
