"""A second trainer, written plainly: one sample at a time, Python floats for the loss, transformers and torch for the rest."""

import dataclasses
import math
from typing import Any

import torch
from transformers import get_constant_schedule_with_warmup, get_polynomial_decay_schedule_with_warmup

from miles.config.commands import TrainConfig
from miles.types import Rollout, Sample
from tests.policy.test_advantages import reference as advantages_of


class ReferenceTrainer:
    """Slow and simple."""

    def __init__(self, model: Any, config: TrainConfig, num_steps: int, horizon: int, anchor: Any = None) -> None:
        self.anchor = anchor
        self.model, self.config, self.num_steps = model, config, num_steps
        options, chosen = config.optimizer, config.algorithm
        betas = options.adam_beta1, options.adam_beta2
        self.adam = torch.optim.AdamW(
            model.parameters(), options.lr, betas, options.adam_eps, options.weight_decay, foreach=False
        )
        warmup = options.lr_warmup_iters
        self.schedule = (
            get_constant_schedule_with_warmup(self.adam, warmup)
            if options.lr_decay_style == "constant"
            else get_polynomial_decay_schedule_with_warmup(self.adam, warmup, horizon, lr_end=options.min_lr, power=1.0)
        )
        self.eps = chosen.eps_clip, chosen.eps_clip if chosen.eps_clip_high is None else chosen.eps_clip_high

    def scores(self, sample: Sample, model: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-prob and entropy of every response token."""
        logits = (model or self.model)(input_ids=torch.tensor([sample.prompt_ids + sample.response_ids])).logits[0]
        logits = logits[len(sample.prompt_ids) - 1 : -1] / self.config.sampling.rollout_temperature
        table = torch.log_softmax(logits, -1)
        return table.gather(1, torch.tensor(sample.response_ids, dtype=torch.int64)[:, None])[:, 0], -(table.exp() * table).sum(
            -1
        )

    def with_exact_logprobs(self, rollout: Rollout) -> Rollout:
        """The rollout as an engine with these weights would have scored it."""
        groups = []
        for group in rollout.groups:
            with torch.no_grad():
                made = [dataclasses.replace(s, logprobs=tuple(self.scores(s)[0].tolist())) for s in group.samples]
            groups.append(dataclasses.replace(group, samples=tuple(made)))
        return dataclasses.replace(rollout, groups=tuple(groups))

    def train_on(self, rollout: Rollout) -> dict[str, float]:
        """The metrics, after the optimiser steps."""
        chosen, samples = self.config.algorithm, rollout.samples
        with torch.no_grad():
            old = [self.scores(sample)[0] for sample in samples]
            anchors = [self.scores(sample, self.anchor)[0] if self.anchor else None for sample in samples]
        rewards = iter(self.shaped(sample, mine, other) for sample, mine, other in zip(samples, old, anchors, strict=True))
        advantages = [
            value
            for g in rollout.groups
            for value in advantages_of([next(rewards) for _ in g.samples], chosen.grpo_std_normalization)
        ]
        self.anchors = {id(sample): other for sample, other in zip(samples, anchors, strict=True)}
        size = len(samples) // self.num_steps
        seen: list[dict[str, float]] = []
        steps = []
        for number in range(self.num_steps):
            part = range(number * size, (number + 1) * size)
            steps.append(
                self.step([samples[i] for i in part], [old[i] for i in part], [advantages[i] for i in part], number, seen)
            )
        row = {f"train/{name}": sum(s[name] for s in steps) / len(steps) for name in steps[0]} | {"train/lr": steps[-1]["lr"]}
        worthless = [a == 0 or not s.response_ids for a, s in zip(advantages, samples, strict=True)]
        row["train/zero_advantage_share"] = sum(worthless) / len(advantages)
        return row | self.token_means(seen)

    def shaped(self, sample, mine, other):
        """The reward less its KL penalty."""
        if sample.reward is None or not self.config.algorithm.kl_coef:
            return sample.reward
        return sample.reward - self.config.algorithm.kl_coef * sum(
            float(mine[place] - other[place]) for place, trained in enumerate(sample.loss_mask) if trained
        )

    def step(self, samples, old, advantages, number, seen):
        """One optimiser step; appends what was seen of each token to ``seen``."""
        chosen = self.config.algorithm
        self.adam.zero_grad()
        counts = [sum(sample.loss_mask) for sample in samples]
        pg_loss = entropy = divergence = torch.zeros((), dtype=torch.float64)
        for sample, before, advantage, count in zip(samples, old, advantages, counts, strict=True):
            current, spread = self.scores(sample)
            share = {
                "token-mean": 1 / max(sum(counts), 1),
                "sequence-mean": 1 / (max(count, 1) * len(samples)),
                "sequence-sum-over-constant": 1 / (len(samples) * self.config.data.rollout_max_response_len),
            }[chosen.loss_aggregation or "token-mean"]
            for place in (place for place, trained in enumerate(sample.loss_mask) if trained):
                loss, facts = self.token_loss(current[place], before[place], sample.logprobs[place], advantage)
                pg_loss, entropy = pg_loss + share * loss, entropy + share * spread[place]
                if chosen.use_kl_loss:
                    d = current[place] - self.anchors[id(sample)][place]
                    divergence = divergence + share * ((-d).exp() - 1 + d)
                if advantage != 0 or chosen.entropy_coef or chosen.use_kl_loss:
                    known = number == 0 or chosen.off_policy_correction != "rollout-logprobs"
                    seen.append(facts | {"compared": float(known)})
        total = pg_loss - chosen.entropy_coef * entropy + chosen.kl_loss_coef * divergence
        total.backward()
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optimizer.clip_grad)
        row = {
            "loss": float(total.detach()),
            "pg_loss": float(pg_loss.detach()),
            "grad_norm": float(norm),
            "lr": self.adam.param_groups[0]["lr"],
        }
        self.adam.step()
        self.schedule.step()
        row |= {"kl_loss": float(divergence.detach())} if chosen.use_kl_loss else {}
        return row | ({"entropy": float(entropy.detach())} if chosen.entropy_coef else {})

    def token_loss(self, current, old, sampled, advantage):
        """The loss of one token, and what the metrics read of it."""
        chosen = self.config.algorithm
        anchor = sampled if chosen.off_policy_correction == "rollout-logprobs" else float(old)
        ratio = (current - anchor).exp()
        free, bound = -ratio * advantage, -ratio.clamp(1 - self.eps[0], 1 + self.eps[1]) * advantage
        weight = float((old - sampled).exp())
        inside = chosen.tis_clip_low <= weight <= chosen.tis_clip
        applied = {
            "tis": min(max(weight, chosen.tis_clip_low), chosen.tis_clip),
            "icepop": weight if inside else 0.0,
        }.get(chosen.off_policy_correction, 1.0)
        facts = {
            "kl": anchor - float(current.detach()),
            "clipped": float(bound > free),
            "weight": weight,
            "limited": float(not inside),
        }
        return max(free, bound) * applied, facts | {"difference": abs(float(old) - sampled)}

    def token_means(self, seen):
        """Means over the tokens seen."""
        mean = lambda name, rows: sum(row[name] for row in rows) / len(rows)  # noqa: E731
        compared = [row for row in seen if row["compared"]]
        total, squares = (sum(row["weight"] ** power for row in compared) for power in (1, 2))
        row = {"train/ppo_kl": mean("kl", seen), "train/pg_clipfrac": mean("clipped", seen)}
        row["train/train_rollout_logprob_abs_diff"] = mean("difference", compared)
        row["train/train_rollout_kl"] = sum(r["weight"] - 1 - math.log(r["weight"]) for r in compared) / len(compared)
        row["train/ess"] = total**2 / (len(compared) * squares)
        row["train/importance_ratio"] = mean("weight", compared)
        share = {"tis": "tis_clipfrac", "icepop": "icepop_maskfrac"}.get(self.config.algorithm.off_policy_correction)
        if share:
            row[f"train/{share}"] = mean("limited", compared)
        return row
