"""From a rollout to its optimiser steps: which samples each consumes, which of them need a forward pass, and in what parts."""

from dataclasses import dataclass

from miles.config.derived import Derived
from miles.errors import PolicyError
from miles.policy.batch import TrainBatch
from miles.policy.collate import ForwardInput, collate, nothing_to_predict
from miles.policy.loss_spec import LossSpec
from miles.policy.model import DecoderModel
from miles.policy.packing import Layout, Limits, plan_micro_batches, plan_rows, share_rows
from miles.policy.ranks import Ranks


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One optimiser step.

    num_samples, num_tokens: samples and trained tokens of its global batch, with those that need no forward pass.
    parts: this rank's micro-batches, only of samples that add to the gradient; every rank has the same number of them.
    """

    num_samples: int
    num_tokens: int
    parts: list[ForwardInput]


@dataclass(frozen=True, slots=True)
class StepPlanner:
    """How rollouts become optimiser steps.

    layout: of the model's rows.
    """

    num_steps: int
    global_batch_size: int
    spec: LossSpec
    limits: Limits
    layout: Layout
    ranks: Ranks

    @classmethod
    def for_model(cls, model: DecoderModel, spec: LossSpec, derived: Derived, ranks: Ranks) -> "StepPlanner":
        """How a run's rollouts become optimiser steps of a model on these ranks."""
        return cls(
            num_steps=derived.num_steps_per_rollout,
            global_batch_size=derived.global_batch_size,
            spec=spec,
            limits=Limits(derived.max_tokens_per_gpu, derived.micro_batch_size),
            layout=model.layout,
            ranks=ranks,
        )

    def plan(self, batch: TrainBatch, useful: list[bool]) -> list[PlannedStep]:
        """The rollout's optimiser steps: consecutive samples, in the rollout's order.

        Args:
            batch: the rollout.
            useful: [samples], whether any token of the sample has an advantage.

        Raises:
            PolicyError: the rollout has not the number of samples that the steps consume.
        """
        wanted = self.num_steps * self.global_batch_size
        if batch.num_samples != wanted:
            raise PolicyError(
                f"rollout {batch.rollout_id} has {batch.num_samples} samples, but {self.num_steps} × global_batch_size "
                f"{self.global_batch_size} = {wanted} are trained on. The rollout function must return rollout_batch_size × "
                "n_samples_per_prompt samples; to leave one out, set its loss mask to 0."
            )
        size = self.global_batch_size
        return [self._step(batch, useful, range(start, start + size)) for start in range(0, wanted, size)]

    def scoring_parts(self, batch: TrainBatch) -> list[ForwardInput]:
        """The rank's share of forward passes over every sample with trained tokens."""
        lengths = batch.trained_lengths
        return self._parts(batch, [sample for sample in range(batch.num_samples) if lengths[sample] > 0])

    def _step(self, batch: TrainBatch, useful: list[bool], samples: range) -> PlannedStep:
        """One optimiser step on ``samples``."""
        lengths = batch.trained_lengths
        skips = self.spec.skips_zero_advantages
        forwarded = [sample for sample in samples if lengths[sample] > 0 and (useful[sample] or not skips)]
        return PlannedStep(len(samples), int(lengths[samples.start : samples.stop].sum()), self._parts(batch, forwarded))

    def _parts(self, batch: TrainBatch, samples: list[int]) -> list[ForwardInput]:
        """The rank's forward passes over ``samples``; a rank whose share needs fewer than another's adds empty ones.

        Ranks gather parameters together, so all of them must go through the model equally often. Each plans for all: the
        number is agreed without a message.
        """
        layout = self.layout
        rows = plan_rows(samples, batch.prompt_of, batch.prompt_lengths, batch.fed_lengths, self.limits, layout)
        shares = [plan_micro_batches(share, self.limits, layout) for share in share_rows(rows, self.ranks.size, layout)]
        own = [collate(batch, part, end_to_end=layout.end_to_end) for part in shares[self.ranks.index]]
        return own + [nothing_to_predict()] * (max(map(len, shares)) - len(own))
