"""The critic of PPO: a value model beside the policy, on the policy's ranks or on ranks of its own."""

from pathlib import Path

from miles.config.options.base import OptionSet, option

PANEL = "Critic"
WITH_PPO = {"advantage_estimator": ["ppo"]}


class CriticOptions(OptionSet):
    """The value model, how it is trained, and what advantages make of its values."""

    critic_load: Path | None = option(
        None,
        "HF folder whose decoder the critic starts from, under a head of zeros. By default --hf-checkpoint.",
        panel=PANEL,
        kind="folder",
        usual=False,
        counts_when=WITH_PPO,
        on_resume="impossible",
    )
    critic_num_gpus_per_node: int | None = option(
        None,
        "Ranks of the critic's own (GPUs; on a CPU worker processes), which takes its steps beside the policy's. By default it "
        "shares the policy's ranks.",
        panel=PANEL,
        ge=1,
        counts_when=WITH_PPO,
        on_resume="safe",
    )
    critic_lr: float | None = option(
        None, "Learning rate of the critic. By default --lr.", panel=PANEL, gt=0, counts_when=WITH_PPO, on_resume="course"
    )
    critic_lr_warmup_iters: int = option(
        0,
        "Optimiser steps over which the critic's learning rate rises from zero; then it stays.",
        panel=PANEL,
        ge=0,
        usual=False,
        counts_when=WITH_PPO,
        on_resume="course",
    )
    num_critic_only_steps: int = option(
        0,
        "Rollouts at the start that train the critic alone, while the policy stays as it is.",
        panel=PANEL,
        ge=0,
        counts_when=WITH_PPO,
        known_as=["critic_warmup"],
        on_resume="course",
    )
    value_clip: float = option(
        0.2,
        "How far a value may move from what it was before the rollout's first step and still lower the loss.",
        panel=PANEL,
        gt=0,
        counts_when=WITH_PPO,
        known_as=["cliprange_value"],
        on_resume="course",
    )
    gamma: float = option(
        1.0, "Discount of what follows a token.", panel=PANEL, ge=0, le=1, counts_when=WITH_PPO, on_resume="course"
    )
    lambd: float = option(
        1.0,
        "Lambda of the generalised advantage estimate: 0 trusts the next value, 1 the rewards that follow.",
        panel=PANEL,
        ge=0,
        le=1,
        counts_when=WITH_PPO,
        known_as=["lam", "gae_lambda"],
        on_resume="course",
    )
