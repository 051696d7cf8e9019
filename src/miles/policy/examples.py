"""Supervised examples as the columns that a trainer takes: what is given is the prompt, what follows has a mask.

given | answer | given | answer        trained: the answers alone; the first given part is the prompt
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from miles.policy.batch import Bools, Ints, TrainBatch


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One line of a data file, in tokens.

    prompt_ids: everything before the first answer, at least one token. response_ids: the rest; trained: [the rest], whether
    the token belongs to an answer.
    """

    prompt_ids: Ints
    response_ids: Ints
    trained: Bools

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.prompt_ids) + len(self.response_ids)


def batch_of(examples: Sequence[Example], step: int) -> TrainBatch:
    """The columns of one optimiser step; every example is a group of its own, and what only sampling knows is 0."""
    count = len(examples)
    responses = np.concatenate([example.response_ids for example in examples])
    return TrainBatch(
        rollout_id=step,
        policy_version=0,
        group_of=np.arange(count),
        prompt_of=np.arange(count),
        rewards=np.zeros(count),
        scored=np.ones(count, np.bool_),
        prompt_ids=np.concatenate([example.prompt_ids for example in examples]),
        prompt_offsets=_offsets([len(example.prompt_ids) for example in examples]),
        response_ids=responses,
        response_offsets=_offsets([len(example.response_ids) for example in examples]),
        logprobs=np.zeros(len(responses)),
        trained=np.concatenate([example.trained for example in examples]),
        versions=np.zeros(len(responses), np.int32),
    )


def _offsets(lengths: Sequence[int]) -> Ints:
    """[lengths + 1]: where each begins, and the end."""
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
