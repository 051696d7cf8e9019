"""Which devices hold the policy and the engines; on a CPU the counts are worker processes."""

from typing import Literal

from miles.config.options.base import OptionSet, option

PANEL = "Cluster"


class RankOptions(OptionSet):
    """Trainer ranks."""

    actor_num_nodes: int = option(1, "Nodes of the policy.", panel=PANEL, ge=1, on_resume="safe")
    actor_num_gpus_per_node: int = option(
        1, "Trainer ranks per node (GPUs; on a CPU worker processes).", panel=PANEL, ge=1, on_resume="safe"
    )
    actor_num_gpus_per_replica: int | None = option(
        None,
        "Ranks over which one copy of the policy is spread; more ranks hold further copies. By default one copy over all.",
        panel=PANEL,
        ge=1,
        usual=False,
        on_resume="safe",
    )


class PlacementOptions(RankOptions):
    """Trainer ranks and the size of an engine."""

    rollout_num_gpus_per_engine: int = option(1, "GPUs of one engine (tensor parallel).", panel=PANEL, ge=1, on_resume="safe")


class Disaggregated(PlacementOptions):
    """Policy and engines on devices of their own."""

    rollout_num_gpus: int = option(
        1, "GPUs of all engines together (on a CPU: engine processes).", panel=PANEL, ge=1, on_resume="safe"
    )


class Colocated(PlacementOptions):
    """Policy and engines share devices and take turns."""

    colocate: Literal[True] = option(
        True,
        "Put the engines on the policy's devices; they take turns.",
        panel=PANEL,
        selector=True,
        chooses="the placement",
        on_resume="safe",
    )
    offload_train: bool = option(
        True, "Move the policy to host memory while the engines sample.", panel=PANEL, usual=False, on_resume="safe"
    )
    offload_rollout: bool = option(
        True, "Release engine memory while the policy trains.", panel=PANEL, usual=False, on_resume="safe"
    )
