"""Ranks of policy and critic that a run cannot have, whatever machine it is on."""

from collections.abc import Iterator

from miles.config.derived import batch_sizes, critic_ranks
from miles.config.view import View
from miles.errors import Problem


def copies_in_whole(view: View) -> Iterator[Problem]:
    """Copies of the policy have their ranks in whole."""
    num_ranks, replica = view["actor_num_nodes"] * view["actor_num_gpus_per_node"], view["actor_num_gpus_per_replica"]
    if replica is not None and num_ranks % replica:
        why = f"does not divide the policy's ranks, actor_num_nodes × actor_num_gpus_per_node = {num_ranks}"
        remedy = f"Give --actor-num-gpus-per-replica a divisor of {num_ranks}, or leave it out for one copy over all ranks"
        yield view.problem("actor_num_gpus_per_replica", why, remedy)


def samples_for_ranks(view: View) -> Iterator[Problem]:
    """Every rank has a sample to train on."""
    num_ranks = view["actor_num_nodes"] * view["actor_num_gpus_per_node"]
    samples, _ = batch_sizes(view.values)
    if num_ranks > samples:
        nodes = view.named("actor_num_nodes")
        why = f"makes {num_ranks} ranks with {nodes}, but an optimiser step has {samples} samples"
        yield view.problem("actor_num_gpus_per_node", why, f"Lower it to at most {samples} ranks, or raise the batch")


def samples_for_critic(view: View) -> Iterator[Problem]:
    """Every rank of the critic's own has one, too."""
    samples, _ = batch_sizes(view.values)
    if critic_ranks(view.values) > samples:
        why = f"gives the critic more ranks than an optimiser step has samples: {samples}"
        yield view.problem("critic_num_gpus_per_node", why, f"Lower it to at most {samples}, or raise the batch")
