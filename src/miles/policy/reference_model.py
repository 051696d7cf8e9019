"""The reference model that KL terms compare with: frozen weights, spread over the ranks as the policy is.

It stays what it was loaded as, or becomes the policy of the moment every ``ref_update_interval`` rollouts. A policy with
adapters is its own reference while they are switched off.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch

from miles.config.commands import AnyConfig
from miles.config.derived import Derived
from miles.errors import PolicyError
from miles.policy.adapters import without_adapters
from miles.policy.model import PolicyModel, chunk_vocabulary, load_model
from miles.policy.ranks import ProcessRanks, Ranks
from miles.policy.sharding import shard_model
from miles.policy.varlen import pack_as_chosen


class Reference(Protocol):
    """What the trainer asks of it.

    model: whose weights are scored. interval: rollouts after which they become the policy's, or None.
    """

    model: PolicyModel
    interval: int | None

    def scoring(self) -> AbstractContextManager[PolicyModel]:
        """The model, ready for forward passes within the block."""
        ...

    def follow(self, policy: PolicyModel, rollouts_done: int) -> None:
        """Take the policy's weights where that is due."""
        ...


class UnadaptedPolicy:
    """The policy without its adapters: the weights that they stand beside."""

    interval: int | None = None

    def __init__(self, model: PolicyModel) -> None:
        self.model = model

    @contextmanager
    def scoring(self) -> Iterator[PolicyModel]:
        """The policy, its adapters off."""
        with without_adapters(self.model):
            yield self.model

    def follow(self, policy: PolicyModel, rollouts_done: int) -> None:
        """It never moves."""


class ReferenceModel:
    """A second model that is never trained.

    interval: rollouts after which it becomes the policy, or None.
    """

    def __init__(self, model: PolicyModel, interval: int | None) -> None:
        self.model, self.interval = model.requires_grad_(False), interval

    def scoring(self) -> AbstractContextManager[PolicyModel]:
        """The model itself."""
        return nullcontext(self.model)

    def follow(self, policy: PolicyModel, rollouts_done: int) -> None:
        """Take the policy's weights where that is due; each rank copies its own slices."""
        if self.interval is None or rollouts_done % self.interval:
            return
        with torch.no_grad():
            for own, new in zip(self.model.parameters(), policy.parameters(), strict=True):
                own.copy_(new)


def load_reference(config: AnyConfig, derived: Derived, policy: PolicyModel, ranks: Ranks) -> Reference | None:
    """The reference that the options ask for; None where no KL term reads one.

    It takes the policy's rows: where it is not fit for how they stand, both take others.

    Raises:
        PolicyError: it cannot be loaded, or has another vocabulary than the policy.
    """
    chosen, options = config.algorithm, config.model
    if not chosen.use_kl_loss and not chosen.kl_coef:
        return None
    if config.lora.lora_rank is not None and options.ref_load is None:
        return UnadaptedPolicy(policy)
    folder = options.ref_load or options.hf_checkpoint
    model = load_model(folder, device=policy.device.type, gradient_checkpointing=False)
    if model.vocab_size != policy.vocab_size:
        raise PolicyError(
            f"the reference model in {folder} has a vocabulary of {model.vocab_size} tokens, the policy one of "
            f"{policy.vocab_size}: their log-probs are of different tokens. Give --ref-load a model with the policy's tokenizer."
        )
    chunk_vocabulary(model, config.optimizer.vocab_chunk_size)
    if policy.packs_end_to_end:
        pack_as_chosen([policy, model], config, derived, ranks)
    if isinstance(ranks, ProcessRanks):
        shard_model(model, ranks.mesh, dtype=options.dtype, offload=config.optimizer.optimizer_cpu_offload)
    return ReferenceModel(model, options.ref_update_interval)
