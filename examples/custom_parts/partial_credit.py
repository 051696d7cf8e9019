"""A reward of your own: the share of letters that stand in the right place.

    miles train --preset reverse --rm-type none --custom-rm-path partial_credit:reward

A plain function runs in a process of its own and is killed at --reward-timeout-seconds; an ``async def`` runs beside the others.
"""

from miles.types import Prompt, Sample


def reward(sample: Sample, prompt: Prompt) -> float:
    """0 for an empty answer, 1 for the label, the share of right letters between."""
    wanted = str(prompt.label)
    right = sum(letter == wish for letter, wish in zip(sample.text, wanted, strict=False))
    return right / max(len(wanted), len(sample.text), 1)
