"""The machines: device kind and Ray."""

from typing import Literal

from miles.config.options.base import OptionSet, option

PANEL = "Cluster"


class ClusterOptions(OptionSet):
    """Where a run takes place."""

    device: Literal["auto", "cuda", "cpu"] = option(
        "auto", "`auto` takes CUDA where there is one.", panel=PANEL, on_resume="course"
    )
    ray_address: str | None = option(
        None,
        "Address of a running Ray cluster; by default Ray is started for this run.",
        panel=PANEL,
        on_resume="safe",
    )
