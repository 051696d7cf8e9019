"""One trainer rank: optimiser steps on rollouts, the same for all schedules.

TrainBatch ─► reference and old log-probs ─► advantages ─► plan (steps of micro-batches)
           ─► for each step: forward, backward, clip, AdamW
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from miles.config.commands import AnyConfig
from miles.config.derived import Derived, critic_only_rollouts, shares_critic, values_of
from miles.errors import NotFiniteError
from miles.policy.adapters import add_adapters
from miles.policy.batch import TrainBatch
from miles.policy.collate import ForwardInput
from miles.policy.critic import Critic, ValueTargets, judged, load_critic
from miles.policy.estimate import AdvantageSpec, token_advantages
from miles.policy.known import Column, Known, column_of, tensor_of
from miles.policy.loss_spec import LossSpec
from miles.policy.losses import TokenColumns, interpolated_old, normaliser, token_losses, token_weights
from miles.policy.memory import naming_micro_batch
from miles.policy.model import PolicyModel, chunk_vocabulary, load_model
from miles.policy.optimizer import build_optimizer, build_schedule, clip_gradient, zero_gradients
from miles.policy.ranks import OneRank, ProcessRanks, Ranks
from miles.policy.reference_model import Reference, load_reference
from miles.policy.scoring import over_tokens
from miles.policy.sharding import loads_on, shard_model
from miles.policy.step_metrics import Tally, token_sums
from miles.policy.step_plan import PlannedStep, StepPlanner
from miles.policy.varlen import pack_as_chosen
from miles.types import Metrics, Rollout, StepReport


@dataclass(frozen=True, slots=True)
class StepColumns:
    """What the loss reads beside the model's scores, on its device and in its dtype, [response tokens] but for ``num_tokens``.

    num_tokens: [samples], trained tokens. sampled: μ. old, reference: None where not computed.
    lag: int64, versions between the policy and the token's sampler. published_since: versions the policy is past its last
    published one when the rollout's first step starts.
    """

    advantages: Tensor
    num_tokens: Tensor
    sampled: Tensor
    lag: Tensor
    published_since: float
    old: Tensor | None
    reference: Tensor | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A rollout, ready for its optimiser steps.

    metrics: what is known before the first. targets: what the critic is trained towards, if there is one.
    """

    columns: StepColumns
    steps: list[PlannedStep]
    metrics: Metrics
    targets: ValueTargets | None


@dataclass(frozen=True, slots=True)
class Moment:
    """Where in a rollout an optimiser step is.

    number: of the step, from 0. progress: weight versions since the rollout's first step. where: for errors.
    """

    number: int
    progress: float
    where: str


class Trainer:
    """The model, its optimiser and schedule, and how many optimiser steps they have taken."""

    def __init__(self, config: AnyConfig, derived: Derived, ranks: Ranks | None = None, model: PolicyModel | None = None) -> None:
        """Load the model (unless one is given) and build its optimiser.

        Raises:
            PolicyError: the model cannot be loaded or trained, or the schedule does not fit the run.
        """
        options, self.ranks = config.model, ranks or OneRank()
        self.model = model or load_model(
            options.hf_checkpoint, device=loads_on(config, derived.device), gradient_checkpointing=options.gradient_checkpointing
        )
        chunk_vocabulary(self.model, config.optimizer.vocab_chunk_size)
        pack_as_chosen([self.model], config, derived, self.ranks)
        add_adapters(self.model, config.lora, base=options.hf_checkpoint, seed=config.run.seed)
        self.reference: Reference | None = load_reference(config, derived, self.model, self.ranks)
        if isinstance(ranks, ProcessRanks):
            offload = config.optimizer.optimizer_cpu_offload
            shard_model(self.model, ranks.mesh, dtype=options.dtype, offload=offload)
        self.optimizer = build_optimizer(self.model.parameters(), config.optimizer)
        self.schedule = build_schedule(self.optimizer, config.optimizer, derived.num_optimizer_steps)
        self.num_optimizer_steps = 0
        self._spec, self._advantage_spec = LossSpec.from_config(config), AdvantageSpec.from_config(config)
        self._temperature = config.sampling.rollout_temperature
        self._clip_grad, self._skips_steps = config.optimizer.clip_grad, config.optimizer.non_finite_steps == "skip"
        self._publish_interval = derived.update_weights_interval
        self._planner = StepPlanner.for_model(self.model, self._spec, derived, self.ranks)
        self._waits_for_critic = critic_only_rollouts(values_of(config))
        self.critic: Critic | None = load_critic(config, derived, self.ranks) if shares_critic(config, derived) else None

    def train_on(self, rollout: Rollout, policy_version: int) -> StepReport:
        """Take the optimiser steps of one rollout; ``policy_version`` is the version of the weights before the first.

        A step whose samples have no token in the loss is left out: it would move the weights by the optimiser's momentum alone.

        Raises:
            PolicyError: the rollout cannot be trained on, or a loss or gradient is not finite; the weights are then those
                of the last whole optimiser step.
        """
        return self.train_on_batch(TrainBatch.from_rollout(rollout, policy_version))

    def train_on_batch(self, batch: TrainBatch, known: Known | None = None) -> StepReport:
        """The same for a rollout that is already in columns; ``known`` where it is not this trainer's to find out."""
        made = self.prepare(batch, known)
        report = StepReport(made.metrics, 0)
        if batch.rollout_id >= self._waits_for_critic:
            report = self._take_steps(batch, made)
        if self.critic is not None and made.targets is not None:
            report = replace(report, metrics=report.metrics | self.critic.train_on(batch, made.targets))
        if self.reference is not None:
            self.reference.follow(self.model, batch.rollout_id + 1)
        return report

    def _take_steps(self, batch: TrainBatch, made: Prepared) -> StepReport:
        """The policy's optimiser steps."""
        tally = Tally.of_lags(batch.num_lags)
        taken = [(number, step) for number, step in enumerate(made.steps) if step.num_tokens]
        for number, step in taken:
            where = f"rollout {batch.rollout_id} (policy version {batch.policy_version}), optimiser step {number}"
            progress = number / (len(made.steps) * self._publish_interval)
            self._take_step(step, made.columns, tally, Moment(number, progress, where))
        metrics = tally.metrics(self._spec, self.ranks) | made.metrics
        if len(taken) < len(made.steps):
            metrics["train/empty_optimizer_steps"] = float(len(made.steps) - len(taken))
        return StepReport(metrics, len(taken) - tally.skipped)

    def mean_loss(self, batch: TrainBatch) -> float:
        """Mean of −log π over the trained tokens, without a step."""
        scores = self.ranks.sum(self._score(self.model, batch, self._planner.scoring_parts(batch)))
        return -float(scores.double().sum()) / max(int(batch.trained.sum()), 1)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as the options resolved to, a sentence each."""
        others = [part.model for part in (self.reference, self.critic) if part is not None]
        return tuple(dict.fromkeys(model.why_not_packed for model in (self.model, *others) if model.why_not_packed))

    @property
    def learning_rate(self) -> float:
        """Of the next optimiser step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def divisor(self, step: PlannedStep) -> float:
        """What the summed losses of a step are divided by."""
        return normaliser(step.num_tokens, step.num_samples, self._spec)

    def known(self, batch: TrainBatch) -> Known:
        """What the ranks know of a rollout before its first step.

        Old log-probs are computed here where the reward needs them.
        """
        old = reference = values = None
        if self.reference is not None:
            passes = self._planner.scoring_parts(batch)
            with self.reference.scoring() as model:
                reference = column_of(self.ranks.sum(self._score(model, batch, passes)))
            if self._advantage_spec.kl_coef:
                old = column_of(self.ranks.sum(self._score(self.model, batch, passes)))
        if self.critic is not None:
            values = column_of(self.critic.values(batch))
        return Known(values, old, reference)

    def prepare(self, batch: TrainBatch, known: Known | None = None) -> Prepared:
        """Everything that is known before the first optimiser step, and what it says about the rollout.

        Old log-probs are computed where later steps or the reward need them; otherwise the first step's forward pass yields
        its own, so that a rollout of one step costs no extra one.
        """
        known = self.known(batch) if known is None else known
        extra: Metrics = {}
        if known.kl is not None:
            seen = known.kl[batch.trained].astype(np.float64)
            extra["train/reward_kl"] = float(seen.mean()) if len(seen) else 0.0
        advantages, targets = self._advantages(batch, known)
        useful = batch.any_of_sample(advantages != 0)
        steps = self._planner.plan(batch, useful)
        extra["train/zero_advantage_share"] = useful.count(False) / max(len(useful), 1)
        old = self._at_model(known.old)
        if old is None and len(steps) > 1 and self._spec.needs_old:
            old = self._score(self.model, batch, [part for step in steps[1:] for part in step.parts])
        return Prepared(self._columns(batch, advantages, old, self._at_model(known.reference)), steps, extra, targets)

    def _advantages(self, batch: TrainBatch, known: Known) -> tuple[Tensor, ValueTargets | None]:
        """[response tokens], and under a critic's values what it is trained towards."""
        if known.values is None:
            return token_advantages(batch, self._advantage_spec, tensor_of(known.kl)), None
        return judged(batch, self._advantage_spec, known.values, known.kl)

    def _at_model(self, column: Column | None) -> Tensor | None:
        """A column where the model is."""
        made = tensor_of(column)
        return None if made is None else made.to(self.model.device)

    def _columns(self, batch: TrainBatch, advantages: Tensor, old: Tensor | None, reference: Tensor | None) -> StepColumns:
        """Move the columns to the model."""
        place = self.model.device, next(self.model.parameters()).dtype
        return StepColumns(
            advantages=advantages.to(*place),
            num_tokens=torch.tensor(batch.trained_lengths).to(*place),
            sampled=torch.tensor(batch.logprobs).to(*place),
            lag=torch.tensor(batch.lags).to(place[0]),
            published_since=batch.rollout_id % self._publish_interval / self._publish_interval,
            old=old,
            reference=reference,
        )

    def _score(self, model: PolicyModel, batch: TrainBatch, parts: Iterable[ForwardInput]) -> Tensor:
        """[response tokens]: log-probs of the tokens in ``parts``, 0 for all others."""
        return over_tokens(batch, parts, model, lambda part: model(part, self._temperature, False).logprobs)

    def _take_step(self, step: PlannedStep, columns: StepColumns, tally: Tally, moment: Moment) -> None:
        """Forward and backward over all parts, then one step of the optimiser; also where no part is left.

        A step that is skipped leaves the optimiser, the schedule and what is measured as they were.
        """
        zero_gradients(self.model)
        divisor = self.divisor(step)
        aggregated, seen = torch.zeros(3, dtype=torch.float64), Tally.of_lags(len(tally.sums))
        for part in step.parts:
            with naming_micro_batch(part):
                aggregated += self.backward(part, columns, divisor, seen, moment)
        pg_loss, entropy, kl = self.ranks.sum(aggregated).tolist()
        loss = pg_loss - self._spec.entropy_coef * entropy + self._spec.kl_coef * kl
        try:
            grad_norm = clip_gradient(self.model, self._clip_grad, loss, moment.where)
        except NotFiniteError:
            if not self._skips_steps:
                raise
            tally.skipped += 1
            return
        tally.add_tokens(seen.sums)
        tally.add_step((pg_loss, entropy, kl), grad_norm, self.learning_rate)
        self.optimizer.step()
        self.schedule.step()
        self.num_optimizer_steps += 1

    def backward(self, part: ForwardInput, columns: StepColumns, divisor: float, tally: Tally | None, moment: Moment) -> Tensor:
        """Add one micro-batch to the gradient; returns its share of the aggregated policy loss, entropy and KL, [3], float64."""
        spec, part = self._spec, part.to(self.model.device)
        scores = self.model(part, self._temperature, spec.entropy_coef > 0)
        tokens = self._tokens(part, scores.logprobs, columns, moment)
        losses = token_losses(tokens, spec)
        weights = token_weights(tokens.num_tokens, spec, divisor)
        pg_loss = torch.dot(losses.loss, weights)
        nothing = torch.zeros_like(pg_loss)
        entropy = nothing if scores.entropy is None else torch.dot(scores.entropy, weights)
        kl = nothing if losses.kl is None else torch.dot(losses.kl, weights)
        (pg_loss - spec.entropy_coef * entropy + spec.kl_coef * kl).backward()  # type: ignore[no-untyped-call]
        if tally is not None:
            compared = moment.number == 0 or spec.reads_old
            tally.add_tokens(token_sums(losses, tokens, columns.lag[part.response_index], len(tally.sums), compared=compared))
        return torch.stack((pg_loss, entropy, kl)).detach().double().cpu()

    def _tokens(self, part: ForwardInput, current: Tensor, columns: StepColumns, moment: Moment) -> TokenColumns:
        """The columns of one micro-batch's tokens."""
        at = part.response_index
        sampled = columns.sampled[at]
        if moment.number == 0 or self._spec.correction == "rollout-logprobs":
            old = current.detach()
        elif columns.old is not None:
            old = columns.old[at]
        else:
            age = columns.lag[at].to(sampled.dtype) + columns.published_since
            old = interpolated_old(current.detach(), sampled, age, moment.progress)
        return TokenColumns(
            current=current,
            old=old,
            sampled=sampled,
            advantages=columns.advantages[at],
            sample_of=part.sample_of,
            num_tokens=columns.num_tokens[part.sample_of],
            reference=None if columns.reference is None else columns.reference[at],
        )
