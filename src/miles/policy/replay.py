"""A failed step again, sample by sample: which of them has a loss or gradient that is no number.

One rank in this process, one sample in a forward pass, the weights as they were before the step; nothing is trained. Where it was
the critic that failed, the policy had taken its own steps, and its loss alone is looked at, under the weights after them.
"""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

from torch.nn.utils import get_total_norm

from miles.policy.batch import TrainBatch
from miles.policy.checkpoint import load_checkpoint
from miles.policy.failure import POLICY, read_failure, read_known
from miles.policy.known import Known
from miles.policy.optimizer import zero_gradients
from miles.policy.process_group import group_of_one, leave
from miles.policy.sharding import whole
from miles.policy.trainer import Moment, Trainer


@dataclasses.dataclass(frozen=True, slots=True)
class SampleReport:
    """One sample of a replayed step.

    sample, group: positions in the rollout. loss: its part of the step's loss. grad_norm: of that part alone.
    """

    sample: int
    group: int
    num_tokens: int
    reward: float
    loss: float
    grad_norm: float

    @property
    def is_finite(self) -> bool:
        """Whether both are numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)

    def __str__(self) -> str:
        return (
            f"sample {self.sample} (group {self.group}, reward {self.reward:g}, {self.num_tokens} trained tokens): "
            f"loss {self.loss:g}, gradient norm {self.grad_norm:g}"
        )


def replay(folder: Path) -> Iterator[SampleReport]:
    """Every sample of the failed step that has a forward pass.

    Raises:
        CheckpointError, PolicyError: the folder is incomplete, or the model cannot be loaded.
    """
    (batch, config, derived), known = read_failure(folder), read_known(folder)
    alone = dataclasses.replace(derived, num_ranks=1, micro_batch_size=1, max_tokens_per_gpu=None)
    if known is None:  # a critic on ranks of its own had not been asked yet
        alone = dataclasses.replace(alone, num_critic_ranks=0)
    trainer = Trainer(config, alone, group_of_one(config, derived.device))
    load_checkpoint(trainer, folder / POLICY)
    try:
        yield from sample_reports(trainer, batch, known)
    finally:
        leave()


def sample_reports(trainer: Trainer, batch: TrainBatch, known: Known | None = None) -> Iterator[SampleReport]:
    """The same, for a trainer that takes one sample at a time."""
    made = trainer.prepare(batch, known)
    for number, step in enumerate(made.steps):
        moment = Moment(number, 0.0, "")
        for part in step.parts:
            zero_gradients(trainer.model)
            loss = trainer.backward(part, made.columns, trainer.divisor(step), None, moment)
            norm = whole(get_total_norm([p.grad for p in trainer.model.parameters() if p.grad is not None]))
            sample = int(part.sample_of[0])
            yield SampleReport(
                sample, int(batch.group_of[sample]), len(part.target), float(batch.rewards[sample]), float(loss[0]), float(norm)
            )
