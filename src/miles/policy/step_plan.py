"""From a rollout to its optimiser steps: which samples each consumes, which of them need a forward pass, and in what parts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from miles.errors import PolicyError
from miles.policy.advantages import grpo_advantages
from miles.policy.batch import TrainBatch
from miles.policy.collate import ForwardInput, collate
from miles.policy.losses import LossSpec
from miles.policy.packing import Limits, plan_micro_batches, plan_rows


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One optimiser step.

    num_samples, num_tokens: samples and trained tokens of its global batch, with those that need no forward pass.
    parts: the micro-batches, only of samples that add to the gradient.
    """

    num_samples: int
    num_tokens: int
    parts: list[ForwardInput]


@dataclass(frozen=True, slots=True)
class StepPlanner:
    """How rollouts become optimiser steps.

    hidden_size: of a model whose rows may share a prompt, else None.
    """

    num_steps: int
    global_batch_size: int
    divide_by_std: bool
    spec: LossSpec
    limits: Limits
    hidden_size: int | None

    def advantages(self, batch: TrainBatch) -> Tensor:
        """[samples], float64."""
        rewards, scored = torch.tensor(batch.rewards), torch.tensor(batch.scored)
        return grpo_advantages(rewards, scored, torch.tensor(batch.group_of), divide_by_std=self.divide_by_std)

    def plan(self, batch: TrainBatch, advantages: Tensor) -> list[PlannedStep]:
        """The rollout's optimiser steps: consecutive samples, in the rollout's order.

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
        return [self._step(batch, advantages, range(start, start + size)) for start in range(0, wanted, size)]

    def _step(self, batch: TrainBatch, advantages: Tensor, samples: range) -> PlannedStep:
        """One optimiser step on ``samples``."""
        lengths = batch.trained_lengths
        useful = (advantages != 0).tolist() if self.spec.skips_zero_advantages else [True] * batch.num_samples
        forwarded = [sample for sample in samples if useful[sample] and lengths[sample] > 0]
        rows = plan_rows(forwarded, batch.prompt_of, batch.prompt_lengths, batch.fed_lengths, self.limits, self.hidden_size)
        parts = [collate(batch, part) for part in plan_micro_batches(rows, self.limits)]
        return PlannedStep(len(samples), int(lengths[samples.start : samples.stop].sum()), parts)
