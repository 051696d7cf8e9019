"""Several trainer ranks on this machine: one process imports torch and transformers, then forks a process for each rank.

    python -m tests.policy.ranked WORK_FOLDER

Runs every scenario below and writes what rank 0 found to ``WORK_FOLDER/<name>.pt``.
"""

import multiprocessing
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from miles.policy.background_save import BackgroundSave
from miles.policy.checkpoint import load_checkpoint, load_critic_state
from miles.policy.critic import Critic, judged, load_critic
from miles.policy.critic_save import BackgroundCriticSave, save_critic
from miles.policy.estimate import AdvantageSpec
from miles.policy.export import export_weights, untied_weights
from miles.policy.known import column_of
from miles.policy.process_group import join, leave
from miles.policy.ranks import OneRank
from miles.policy.sender import WeightSender
from miles.policy.sharding import whole
from miles.policy.trainer import Trainer
from tests.policy.builders import PRESET, batch_of, causal_lm, config, derived, policy_model, random_rollout, rollout, sample

ROLLOUTS = [random_rollout(seed, num_groups=2, group_size=4, longest=6) for seed in (5, 6, 7)]
LIVELY = {"lr_decay_style": "cosine", "lr_warmup_iters": 1, "weight_decay": 0.01, "lr": 1e-2}
KEPT: dict[str, dict[str, Any]] = {"whole": {}, "adapters": {"lora_rank": 2}}
Job = Callable[[Any, Path], Any]


def trainer(ranks: Any, model_dtype: torch.dtype = torch.float64, **options: Any) -> Trainer:
    """A trainer on a tiny model for rollouts of eight samples."""
    sizes = options.pop("sizes", {})
    return Trainer(config(**(LIVELY | options)), derived(8, **sizes), ranks, policy_model(dtype=model_dtype))


def gradient_of(built: Trainer, made: Any) -> torch.Tensor:
    """The whole gradient of one step, in one vector."""
    built.train_on(made, 0)
    return torch.cat([whole(parameter.grad).flatten() for parameter in built.model.parameters() if parameter.grad is not None])


def cuts(ranks: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """One batch, computed in several ways that change nothing."""
    built = {
        "packed": trainer(ranks, dtype),
        "one sample at a time": trainer(ranks, dtype, sizes={"micro_batch_size": 1}),
        "vocabulary chunks": trainer(ranks, dtype, vocab_chunk_size=5),
        "checkpointing": checkpointed(ranks, dtype),
        "end to end": trainer(ranks, dtype, sizes={"packing": "varlen"}),
    }
    return {name: gradient_of(one, ROLLOUTS[0]) for name, one in built.items()}


def gradients(ranks: Any, folder: Path) -> dict[str, torch.Tensor]:
    """One batch under several cuts."""
    made = ROLLOUTS[0]
    found = cuts(ranks, torch.float64) | {f"float32, {name}": vector for name, vector in cuts(ranks, torch.float32).items()}
    found |= {
        "bfloat16": gradient_of(trainer(ranks, torch.float32, dtype="bfloat16" if ranks else "float32"), made),
        "entropy": gradient_of(trainer(ranks, entropy_coef=0.05, loss_aggregation="sequence-mean"), made),
        "critic": with_a_critic(ranks, made),
        "bfloat16, end to end": gradient_of(
            trainer(ranks, torch.float32, dtype="bfloat16" if ranks else "float32", sizes={"packing": "varlen"}), made
        ),
        "adapters": gradient_of(adapted(ranks), made),
    }
    lonely = [[sample(0, i, (1, 2), (3, 4, 5), reward=float(i == 0)) for i in range(2)]]
    lonely.append([sample(1, i, (1, 2), (3, 4, 5)) for i in range(6)])  # no advantage: ranks are left empty
    return found | {"empty ranks": gradient_of(trainer(ranks), rollout(lonely))}


def with_a_critic(ranks: Any, made: Any) -> torch.Tensor:
    """The gradients of policy and critic under PPO."""
    with mock.patch("miles.policy.value_model.read_causal_lm", return_value=causal_lm(seed=5).double()):
        built = trainer(ranks, advantage_estimator="ppo", lambd=0.9)
    of_policy = gradient_of(built, made)
    return torch.cat([of_policy, *(whole(parameter.grad).flatten() for parameter in built.critic.model.parameters())])


def adapted(ranks: Any) -> Trainer:
    """Adapters after a step, when both of their factors have a gradient, beside the reference that they are taken off for."""
    built = trainer(ranks, lora_rank=2, use_kl_loss=True, kl_loss_coef=0.1)
    built.train_on(ROLLOUTS[1], 0)
    return built


def checkpointed(ranks: Any, dtype: torch.dtype) -> Trainer:
    """Activations are made anew in the backward pass."""
    model = policy_model(dtype=dtype)
    model.causal_lm.gradient_checkpointing_enable({"use_reentrant": False})
    return Trainer(config(**LIVELY), derived(8), ranks, model)


def steps(ranks: Any, folder: Path) -> list[Any]:
    """Two rollouts of two optimiser steps each, and the export after them."""
    built = trainer(ranks, sizes={"num_steps": 2}, off_policy_correction="tis")
    reports = [built.train_on(made, 0).metrics for made in ROLLOUTS[:2]]
    export_weights(built.model.causal_lm, folder / f"export-{built.ranks.size}", ranks)
    sender = WeightSender(built.model.causal_lm, built.ranks, "float64")
    sender.stage(1, 4096, shared=False, on_device=False)
    sums = sender.checksums(list(untied_weights(built.model.causal_lm)))
    staged = {name: tensor.clone() for bucket in sender._staged[1] for name, tensor in bucket.tensors()}
    torch.save({"weights": staged, "checksums": sums}, folder / f"staged-{built.ranks.size}-{built.ranks.index}.pt")
    return reports


def begin(ranks: Any, folder: Path) -> Any:
    """One rollout, then a checkpoint."""
    for name, options in KEPT.items():
        built = trainer(ranks, **options)
        built.train_on(ROLLOUTS[0], 0)
        saving = BackgroundSave(built, folder / f"{name}-{built.ranks.size}", PRESET)
        built.train_on(ROLLOUTS[1], 0)
        saving.finish()
    return None


def go_on(written_by: int) -> Job:
    """Load the checkpoint of so many ranks and take the rest."""

    def job(ranks: Any, folder: Path) -> Any:
        reports = []
        for name, options in KEPT.items():
            built = trainer(ranks, **options)
            load_checkpoint(built, folder / f"{name}-{written_by}")
            reports += [built.train_on(made, 1).metrics for made in ROLLOUTS[1:]]
        return reports

    return job


def own_critic(ranks: Any) -> Critic:
    """A critic on ranks of its own, on a tiny model."""
    with mock.patch("miles.policy.value_model.read_causal_lm", return_value=causal_lm(seed=5).double()):
        return load_critic(config(**(LIVELY | {"advantage_estimator": "ppo", "lambd": 0.9})), derived(8), ranks or OneRank())


def learned(critic: Critic, made: Any) -> Any:
    """Its report on a rollout, and the values before."""
    batch = batch_of(made)
    values = column_of(critic.values(batch))
    _, targets = judged(batch, AdvantageSpec("ppo", False, False, 0.0, None, lambd=0.9), values, None)
    return critic.train_on(batch, targets) | {"values": values.tolist()}


def critic_begins(ranks: Any, folder: Path) -> Any:
    """One rollout, then what it gives to a checkpoint, then another."""
    critic = own_critic(ranks)
    first = learned(critic, ROLLOUTS[0])
    for name, save in (("now", save_critic), ("later", lambda *given: BackgroundCriticSave(*given).finish())):
        save(critic, folder / f"{name}-{critic.ranks.size}/critic")
    critic.ranks.wait()
    return [first, learned(critic, ROLLOUTS[1])]


def critic_goes_on(written_by: int, name: str) -> Job:
    """Load what so many ranks gave and take the rest."""

    def job(ranks: Any, folder: Path) -> Any:
        critic = own_critic(ranks)
        load_critic_state(critic, folder / f"{name}-{written_by}")
        return [learned(critic, ROLLOUTS[1])]

    return job


SCENARIOS: list[tuple[str, int, int, Job]] = [
    ("gradients-1", 1, 1, gradients),
    ("gradients-2", 2, 2, gradients),
    ("gradients-4", 4, 4, gradients),
    ("gradients-2x2", 4, 2, gradients),
    ("steps-1", 1, 1, steps),
    ("steps-2", 2, 2, steps),
    ("begin-1", 1, 1, begin),
    ("begin-2", 2, 2, begin),
    ("1-to-1", 1, 1, go_on(1)),
    ("1-to-2", 2, 2, go_on(1)),
    ("2-to-1", 1, 1, go_on(2)),
    ("2-to-2", 2, 2, go_on(2)),
    ("critic-1", 1, 1, critic_begins),
    ("critic-2", 2, 2, critic_begins),
    ("critic-1-to-2", 2, 2, critic_goes_on(1, "now")),
    ("critic-2-to-1", 1, 1, critic_goes_on(2, "later")),
]


def rank_process(name: str, index: int, num_ranks: int, replica: int, job: Job, folder: Path) -> None:
    """One rank of one scenario."""
    try:
        torch.set_num_threads(1)
        ranks = None
        if num_ranks > 1:
            store = dist.FileStore(str(folder / f"{name}.store"), num_ranks)
            ranks = join(store, index, num_ranks, replica, "cpu")
        found = job(ranks, folder)
        if index == 0:
            torch.save(found, folder / f"{name}.pt")
        leave()
    except Exception:
        traceback.print_exc()
        raise


def main() -> None:
    """All scenarios, or those named."""
    folder = Path(sys.argv[1])
    context = multiprocessing.get_context("fork")
    for name, num_ranks, replica, job in SCENARIOS:
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        processes = [
            context.Process(target=rank_process, args=(name, index, num_ranks, replica, job, folder))
            for index in range(num_ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            sys.exit(f"{name}: a rank failed")


if __name__ == "__main__":
    main()
