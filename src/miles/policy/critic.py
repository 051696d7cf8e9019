"""PPO's critic: what the text before each token is worth, learned beside the policy, on its ranks or on ranks of its own.

TrainBatch ─► values (before the policy's steps) ─► advantages and returns ─► policy's steps, critic's steps
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.errors import CriticNotFiniteError, NotFiniteError
from miles.policy.batch import TrainBatch
from miles.policy.collate import ForwardInput
from miles.policy.estimate import AdvantageSpec, beside_values
from miles.policy.known import Column, tensor_of
from miles.policy.loss_spec import LossSpec
from miles.policy.losses import clipped_value_loss
from miles.policy.memory import naming_micro_batch
from miles.policy.optimizer import build_optimizer, build_schedule, clip_gradient, zero_gradients
from miles.policy.ranks import ProcessRanks, Ranks
from miles.policy.scoring import over_tokens
from miles.policy.sharding import loads_on, shard_model
from miles.policy.step_plan import PlannedStep, StepPlanner
from miles.policy.value_model import ValueModel, load_value_model
from miles.policy.varlen import pack_as_chosen
from miles.types import Metrics, mean


@dataclass(frozen=True, slots=True)
class ValueTargets:
    """Values before the rollout's first step, and the returns they are trained towards; [response tokens] each, on the CPU."""

    before: Tensor
    returns: Tensor


class Critic:
    """The value model, its optimiser and schedule, on ``ranks``."""

    def __init__(self, config: AnyConfig, derived: Derived, ranks: Ranks, model: ValueModel) -> None:
        """Build the optimiser of a value model that is spread over the ranks already.

        Raises:
            PolicyError: the schedule does not fit the run.
        """
        chosen = config.critic
        own = {"lr": chosen.critic_lr or config.optimizer.lr, "lr_warmup_iters": chosen.critic_lr_warmup_iters}
        options = config.optimizer.model_copy(update=own | {"lr_decay_style": "constant"})
        self.model, self.ranks = model, ranks
        self.optimizer = build_optimizer(model.parameters(), options)
        self.schedule = build_schedule(self.optimizer, options, derived.num_rollout * derived.num_steps_per_rollout)
        self._planner = StepPlanner.for_model(model, LossSpec(), derived, ranks)
        self._value_clip, self._clip_grad = chosen.value_clip, options.clip_grad
        self._skips_steps = options.non_finite_steps == "skip"

    @property
    def notes(self) -> tuple[str, ...]:
        """As ``Trainer.notes``."""
        return (self.model.why_not_packed,) if self.model.why_not_packed else ()

    def values(self, batch: TrainBatch) -> Tensor:
        """[response tokens], on the CPU: value of the text before each token; 0 where no return is known.

        Every rank must call it.
        """
        passes = self._planner.scoring_parts(with_returns(batch))
        return self.ranks.sum(over_tokens(batch, passes, self.model, self.model)).cpu()

    def train_on(self, batch: TrainBatch, targets: ValueTargets) -> Metrics:
        """As many optimiser steps as the policy takes, on the same samples.

        Returns:
            ``value_loss``, ``value_clipfrac``, ``critic_grad_norm``: means over the steps; ``critic_lr``: of the last;
            ``value_mean``, ``return_mean``, and ``explained_variance``, 1 − Var(R − V) / Var(R), of the values before them.

        Raises:
            CriticNotFiniteError: a loss or gradient is not finite; the weights are those of the last whole step.
        """
        seen = with_returns(batch)
        steps = self._planner.plan(seen, [True] * seen.num_samples)
        rows: list[tuple[float, float, float]] = []
        rate = float(self.optimizer.param_groups[0]["lr"])
        for number, step in enumerate(steps):
            rate = float(self.optimizer.param_groups[0]["lr"])
            try:
                rows.append(self._take_step(step, targets, f"rollout {batch.rollout_id}, step {number} of the critic"))
            except NotFiniteError as error:
                if not self._skips_steps:
                    raise CriticNotFiniteError(str(error)) from error
        row = {"critic_lr": rate}
        for place, name in enumerate(("value_loss", "value_clipfrac", "critic_grad_norm") if rows else ()):
            row[name] = mean([of_step[place] for of_step in rows])
        if len(rows) < len(steps):
            row["critic_skipped_steps"] = float(len(steps) - len(rows))
        return {f"train/{name}": value for name, value in (row | fit_of(targets, torch.tensor(seen.trained))).items()}

    def _take_step(self, step: PlannedStep, targets: ValueTargets, where: str) -> tuple[float, float, float]:
        """Loss, share of clipped tokens, gradient norm."""
        zero_gradients(self.model)
        found = torch.zeros(2, dtype=torch.float64)
        for part in step.parts:
            with naming_micro_batch(part):
                found += self.backward(part, targets, max(step.num_tokens, 1))
        loss, clipped = self.ranks.sum(found).tolist()
        norm = clip_gradient(self.model, self._clip_grad, loss, where)
        self.optimizer.step()
        self.schedule.step()
        return loss, clipped, norm

    def backward(self, part: ForwardInput, targets: ValueTargets, num_tokens: int) -> Tensor:
        """Add one micro-batch to the gradient; its share of the mean loss and of the clipped tokens, [2], float64."""
        values = self.model(part.to(self.model.device))
        before, returns = (column[part.response_index].to(values) for column in (targets.before, targets.returns))
        losses, clipped = clipped_value_loss(values, before, returns, self._value_clip)
        loss = losses.sum() / num_tokens
        loss.backward()  # type: ignore[no-untyped-call]
        return torch.stack((loss.detach(), clipped.sum() / num_tokens)).double().cpu()


def judged(batch: TrainBatch, spec: AdvantageSpec, values: Column, kl: Column | None) -> tuple[Tensor, ValueTargets]:
    """Advantages of a rollout under the critic's values, [response tokens], and what the critic is trained towards."""
    before = torch.tensor(values)
    advantages, returns = beside_values(batch, spec, tensor_of(kl), before)
    return advantages, ValueTargets(before, returns)


def with_returns(batch: TrainBatch) -> TrainBatch:
    """The batch with only those tokens trained whose answer has a reward."""
    scored = np.repeat(batch.scored, np.diff(batch.response_offsets))
    return replace(batch, trained=batch.trained & scored)


def fit_of(targets: ValueTargets, known: Tensor) -> Metrics:
    """How well the values of the known tokens, [response tokens] bool, foretold their returns."""
    before, returns = targets.before.double()[known], targets.returns[known]
    if not len(returns):
        return {}
    row = {"value_mean": float(before.mean()), "return_mean": float(returns.mean())}
    spread = float(returns.var(correction=0))
    return row | ({"explained_variance": 1 - float((returns - before).var(correction=0)) / spread} if spread else {})


def load_critic(config: AnyConfig, derived: Derived, ranks: Ranks) -> Critic:
    """The critic that the options ask for, spread over these ranks.

    Raises:
        PolicyError: its model cannot be loaded, or the schedule does not fit the run.
    """
    options = config.model
    model = load_value_model(
        config.critic.critic_load or options.hf_checkpoint,
        device=loads_on(config, derived.device),
        gradient_checkpointing=options.gradient_checkpointing,
    )
    pack_as_chosen([model], config, derived, ranks)
    if isinstance(ranks, ProcessRanks):
        shard_model(model, ranks.mesh, dtype=options.dtype, offload=config.optimizer.optimizer_cpu_offload)
    return Critic(config, derived, ranks, model)
