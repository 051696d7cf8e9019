"""One trainer rank: optimiser steps on rollouts, the same for all schedules.

TrainBatch ─► advantages ─► plan (steps of micro-batches) ─► old log-probs ─► per step: forward, backward, clip, AdamW
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.errors import PolicyError
from miles.policy.batch import TrainBatch
from miles.policy.collate import ForwardInput
from miles.policy.losses import LossSpec, normaliser, token_losses, token_weights
from miles.policy.model import PolicyModel, load_model
from miles.policy.optimizer import build_optimizer, build_schedule
from miles.policy.packing import Limits
from miles.policy.ranks import OneRank, ProcessRanks, Ranks
from miles.policy.sharding import shard_model, whole
from miles.policy.step_metrics import Tally, token_sums
from miles.policy.step_plan import PlannedStep, StepPlanner
from miles.types import Rollout, StepReport


@dataclass(frozen=True, slots=True)
class _Columns:
    """What the loss reads beside the model's scores, on its device and in its dtype.

    advantages, trained_lengths: [samples]. sampled: [response tokens], μ. old: [response tokens], or None where not computed.
    """

    advantages: Tensor
    trained_lengths: Tensor
    sampled: Tensor
    old: Tensor | None


class Trainer:
    """The model, its optimiser and schedule, and how many optimiser steps they have taken."""

    def __init__(self, config: AnyConfig, derived: Derived, ranks: Ranks | None = None, model: PolicyModel | None = None) -> None:
        """Load the model (unless one is given) and build its optimiser.

        Raises:
            PolicyError: the model cannot be loaded or trained, or the schedule does not fit the run.
        """
        options, self.ranks = config.model, ranks or OneRank()
        self.model = model or load_model(
            options.hf_checkpoint, device=derived.device, gradient_checkpointing=options.gradient_checkpointing
        )
        if isinstance(ranks, ProcessRanks):
            shard_model(self.model, ranks.mesh)
        self.optimizer = build_optimizer(self.model.parameters(), config.optimizer)
        self.schedule = build_schedule(self.optimizer, config.optimizer, derived.num_optimizer_steps)
        self.num_optimizer_steps = 0
        self._spec = LossSpec.from_config(config)
        self._temperature = config.sampling.rollout_temperature
        self._clip_grad = config.optimizer.clip_grad
        self._planner = StepPlanner(
            num_steps=derived.num_steps_per_rollout,
            global_batch_size=derived.global_batch_size,
            divide_by_std=config.algorithm.grpo_std_normalization,
            spec=self._spec,
            limits=Limits(derived.max_tokens_per_gpu, derived.micro_batch_size),
            hidden_size=self.model.hidden_size,
            shares_prompts=self.model.shares_prompts,
            ranks=self.ranks,
        )

    def train_on(self, rollout: Rollout, policy_version: int) -> StepReport:
        """Take the optimiser steps of one rollout; ``policy_version`` is the version of the weights before the first.

        Raises:
            PolicyError: the rollout cannot be trained on, or a loss or gradient is not finite; the weights are then those
                of the last whole optimiser step.
        """
        return self.train_on_batch(TrainBatch.from_rollout(rollout, policy_version))

    def train_on_batch(self, batch: TrainBatch) -> StepReport:
        """The same for a rollout that is already in columns."""
        advantages = self._planner.advantages(batch)
        steps = self._planner.plan(batch, advantages)
        columns = self._columns(batch, advantages, steps)
        tally = Tally()
        for number, step in enumerate(steps):
            where = f"rollout {batch.rollout_id} (policy version {batch.policy_version}), optimiser step {number}"
            self._take_step(step, columns, tally, first=number == 0, where=where)
        zero = int((advantages == 0).sum()) / max(batch.num_samples, 1)
        return StepReport(tally.metrics(self._spec, self.ranks) | {"train/zero_advantage_share": zero}, len(steps))

    @property
    def learning_rate(self) -> float:
        """Of the next optimiser step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def _columns(self, batch: TrainBatch, advantages: Tensor, steps: Sequence[PlannedStep]) -> _Columns:
        """Move the columns to the model, and compute old log-probs where later optimiser steps will need them.

        The first step's forward pass yields its own old log-probs, so a rollout of one step costs no extra one.
        """
        device, dtype = self.model.device, next(self.model.parameters()).dtype
        columns = _Columns(
            advantages=advantages.to(device, dtype),
            trained_lengths=torch.tensor(batch.trained_lengths).to(device, dtype),
            sampled=torch.tensor(batch.logprobs).to(device, dtype),
            old=None,
        )
        if len(steps) == 1 or not self._spec.reads_old:
            return columns
        old = torch.full_like(columns.sampled, torch.nan)
        with torch.no_grad():
            for part in (part.to(self.model.device) for step in steps[1:] for part in step.parts):
                old[part.response_index] = self.model(part, self._temperature, False).logprobs
        return replace(columns, old=old)

    def _take_step(self, step: PlannedStep, columns: _Columns, tally: Tally, *, first: bool, where: str) -> None:
        """Forward and backward over all parts, then one step of the optimiser; also where no part is left."""
        zero_gradients(self.model)
        divisor = normaliser(step.num_tokens, step.num_samples, self._spec)
        aggregated = torch.zeros(2, dtype=torch.float64)
        for part in step.parts:
            aggregated += self._backward(part, columns, divisor, tally, first=first)
        pg_loss, entropy = self.ranks.sum(aggregated).tolist()
        grad_norm = self._clip(pg_loss - self._spec.entropy_coef * entropy, where)
        tally.add_step(pg_loss, entropy, grad_norm, self.learning_rate)
        self.optimizer.step()
        self.schedule.step()
        self.num_optimizer_steps += 1

    def _backward(self, part: ForwardInput, columns: _Columns, divisor: float, tally: Tally, *, first: bool) -> Tensor:
        """Add one micro-batch to the gradient; returns its share of the aggregated policy loss and entropy, [2], float64."""
        spec, part = self._spec, part.to(self.model.device)
        scores = self.model(part, self._temperature, spec.entropy_coef > 0)
        current, sampled = scores.logprobs, columns.sampled[part.response_index]
        old = current.detach() if first or columns.old is None else columns.old[part.response_index]
        losses = token_losses(current, old, sampled, columns.advantages[part.sample_of], spec)
        weights = token_weights(columns.trained_lengths[part.sample_of], spec, divisor)
        pg_loss = torch.dot(losses.loss, weights)
        entropy = torch.dot(scores.entropy, weights) if scores.entropy is not None else torch.zeros_like(pg_loss)
        (pg_loss - spec.entropy_coef * entropy).backward()  # type: ignore[no-untyped-call]
        tally.add_tokens(token_sums(losses, old if first or spec.reads_old else None, sampled))
        return torch.stack((pg_loss, entropy)).detach().double().cpu()

    def _clip(self, loss: float, where: str) -> float:
        """Clip the gradient to ``clip_grad`` and return its norm before.

        Raises:
            PolicyError: the loss or the norm is not finite.
        """
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = whole(get_total_norm(gradients))
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise PolicyError(
                f"{where}: the loss is {loss:g} and the gradient norm {float(norm):g}; the step was not taken and the weights "
                "are unchanged. Lower --lr or --clip-grad, and look at the rewards and log-probs of this rollout."
            )
        clip_grads_with_norm_(self.model.parameters(), self._clip_grad, norm)
        return float(norm)


def zero_gradients(model: PolicyModel) -> None:
    """Give every trained parameter a zero gradient, so that the optimiser moves all of them at every step."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
        elif parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
