"""The inference engines that sample answers."""

from typing import Literal

from miles.config.options.base import OptionSet, option

PANEL = "Engine"


class EngineOptions(OptionSet):
    """Which server answers SGLang's HTTP API."""

    engine: Literal["auto", "embedded", "sglang"] = option(
        "auto",
        "`embedded` runs anywhere; `sglang` needs its package. `auto` is sglang on CUDA, embedded on a CPU.",
        panel=PANEL,
        on_resume="course",
    )
    engine_max_running_requests: int = option(
        128, "Requests that one engine decodes together.", panel=PANEL, ge=1, usual=False, on_resume="safe"
    )
    engine_start_timeout_seconds: float = option(
        300.0,
        "An engine that does not answer after so long has failed.",
        panel=PANEL,
        gt=0,
        usual=False,
        on_resume="safe",
    )
    engine_first_port: int = option(
        15000,
        "Engine n of sglang listens at a free port of the hundred from this + 100 n.",
        panel=PANEL,
        ge=1,
        le=60000,
        usual=False,
        on_resume="safe",
    )
    engine_max_restarts: int = option(
        3,
        "An engine that dies or hangs is started again so many times; then the run ends.",
        panel=PANEL,
        ge=0,
        usual=False,
        on_resume="safe",
    )
    rollout_health_check_interval: float = option(
        10.0, "Seconds between two signs of life asked of an engine.", panel=PANEL, gt=0, usual=False, on_resume="safe"
    )
    rollout_health_check_timeout: float = option(
        30.0,
        "An engine that gives no sign of life, or does not do what it is told at once, for so many seconds is started again.",
        panel=PANEL,
        gt=0,
        usual=False,
        on_resume="safe",
    )
    update_weights_timeout_seconds: float = option(
        120.0,
        "Longest time of one step of a weight update (export, join, pause, update, check, continue).",
        panel=PANEL,
        gt=0,
        usual=False,
        on_resume="safe",
    )
    update_weight_transfer_mode: Literal["auto", "disk", "tensor", "broadcast"] = option(
        "auto",
        "How weights reach the engines: through a folder, through memory of the same host, or over a process group. `auto` is "
        "disk on a CPU, broadcast on GPUs, tensor where policy and engines share them.",
        panel=PANEL,
        usual=False,
        on_resume="safe",
    )
    update_weight_buffer_size: int = option(
        512 * 2**20,
        "Bytes of weights that travel at once; a larger tensor travels alone.",
        panel=PANEL,
        ge=1,
        usual=False,
        counts_when={"update_weight_transfer_mode": ["auto", "tensor", "broadcast"]},
        on_resume="safe",
    )
    check_weight_update: bool = option(
        False,
        "After every update compare the checksum of every tensor that engines hold with the policy's; a difference ends the run.",
        panel=PANEL,
        usual=False,
        on_resume="safe",
    )
    rollout_external_engine_addrs: tuple[str, ...] = option(
        (),
        "Addresses of running servers to use instead of starting engines.",
        panel=PANEL,
        usual=False,
        on_resume="safe",
    )
    sglang: tuple[tuple[str, str], ...] = option(
        (),
        "An argument of sglang's own server: NAME VALUE, `true` for a switch. In a file the table `[sglang]`.",
        panel=PANEL,
        kind="arguments",
        metavar="NAME VALUE",
        usual=False,
        counts_when={"engine": ["sglang", "auto"]},
        on_resume="safe",
    )
    router_policy: Literal["auto", "none", "cache_aware", "manual", "power_of_two", "random", "round_robin"] = option(
        "auto",
        "How sglang's router spreads requests over several engines; `manual` keeps a group together, `none` starts no router. "
        "`auto` is manual before several sglang engines that miles starts, if sglang-router is installed.",
        panel=PANEL,
        usual=False,
        on_resume="safe",
    )
    router: tuple[tuple[str, str], ...] = option(
        (),
        "An argument of sglang's router: NAME VALUE, `true` for a switch. In a file the table `[router]`.",
        panel=PANEL,
        kind="arguments",
        metavar="NAME VALUE",
        usual=False,
        on_resume="safe",
    )
