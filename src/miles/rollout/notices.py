"""What the user should hear while it happens: rewards that fail, groups that are sampled again or dropped.

Each kind is told the first time and then whenever its number has doubled, so that a part that fails often does not fill the
terminal; the numbers of every rollout are in ``metrics.jsonl``.
"""

from collections import Counter
from collections.abc import Callable

from miles.rollout.ledger import DropReason
from miles.types import Group, SampleStatus


class Notices:
    """Tells through ``say``, one line at a time."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._counts: Counter[str] = Counter()
        self._told: Counter[str] = Counter()

    def accepted(self, group: Group) -> None:
        """A group goes into the buffer; some of its samples may have no reward."""
        failed = [sample for sample in group.samples if sample.status is SampleStatus.FAILED]
        if failed:
            why = failed[0].metadata.get("reward_error", "the reward gave no number")
            share = f"{len(failed)} of {len(group.samples)} answers of group {group.index}"
            self._tell("answers", len(failed), f"{share} got no reward and stay out of the loss: {why}")

    def refused(self, index: int, reason: DropReason, detail: str, *, again: bool) -> None:
        """A group is not used."""
        outcome = "sampled again" if again else "dropped"
        self._tell(f"groups {outcome} ({reason})", 1, f"group {index} is {outcome} ({reason}): {detail}")

    def _tell(self, kind: str, number: int, sentence: str) -> None:
        self._counts[kind] += number
        if self._counts[kind] >= 2 * self._told[kind]:
            self._told[kind] = self._counts[kind]
            self._say(sentence if self._counts[kind] == number else f"{sentence}; {self._counts[kind]} {kind} so far")
