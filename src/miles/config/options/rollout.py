"""The three schedules: what may be said about each, and nothing else.

``SyncRollout`` belongs to ``miles train``; ``OneStepOff`` and ``FullyAsync`` to ``miles train-async``.
"""

from typing import Literal

from miles.config.options.base import OptionSet, option

PANEL = "Rollout"
ASYNC_PANEL = "Asynchrony"
FULLY_ASYNC_PANEL = "Fully async"


class RolloutOptions(OptionSet):
    """What all schedules share."""

    custom_generate_function_path: str | None = option(
        None,
        "Dotted path of your generate function (one sample in, the finished sample out).",
        panel=PANEL,
        kind="dotted",
        on_resume="course",
    )
    environment_path: str | None = option(
        None,
        "Dotted path of your environment, which replies to the model's turns (a tool, a user, a game): answers have several "
        "turns, and what it says is not trained on.",
        panel=PANEL,
        kind="dotted",
        usual=False,
        on_resume="course",
    )
    max_turns: int = option(
        8,
        "Most turns of the model in one answer.",
        panel=PANEL,
        ge=1,
        usual=False,
        counts_when={"environment_path": ["given"]},
        on_resume="course",
    )
    dynamic_sampling_filter_path: str | None = option(
        None,
        "Dotted path of a filter called with a finished group; a rejected group is refilled by another prompt.",
        panel=PANEL,
        kind="dotted",
        on_resume="course",
    )
    rollout_sample_filter_path: str | None = option(
        None,
        "Dotted path of a filter called with the groups of a rollout; it may take samples out of the loss.",
        panel=PANEL,
        kind="dotted",
        usual=False,
        on_resume="course",
    )
    rollout_submission_granularity: Literal["group", "sample"] = option(
        "group", "Send the samples of a group as one request or each on its own.", panel=PANEL, usual=False, on_resume="course"
    )
    rollout_timeout_seconds: float = option(
        600.0,
        "A group that takes longer is aborted and accounted for.",
        panel=PANEL,
        gt=0,
        usual=False,
        on_resume="safe",
    )
    max_group_retries: int = option(
        2,
        "How often a group that failed, timed out or came too late is sampled again before it is dropped.",
        panel=PANEL,
        ge=0,
        usual=False,
        on_resume="safe",
    )
    no_progress_seconds: float = option(
        60.0,
        "Say who waits for whom when nothing has moved for so long.",
        panel=PANEL,
        gt=0,
        usual=False,
        on_resume="safe",
    )


class ReplaceableRollout(RolloutOptions):
    """Schedules whose rollout function the user may replace."""

    rollout_function_path: str | None = option(
        None,
        "Dotted path of your rollout function.",
        panel=PANEL,
        kind="dotted",
        selector=True,
        chooses="the rollout function",
        on_resume="course",
    )
    rollout_api: Literal["class", "function"] = option(
        "class",
        "Rollout functions are classes built once, or (the older way) functions called for each rollout.",
        panel=PANEL,
        usual=False,
        on_resume="course",
    )
    over_sampling_batch_size: int | None = option(
        None,
        "Groups in flight for one rollout; the first --rollout-batch-size accepted ones are used, the rest is sampled later.",
        panel=PANEL,
        ge=1,
        on_resume="course",
    )
    partial_rollout: bool = option(
        False,
        "Keep the unfinished answers of over-sampling and continue them in the next rollout.",
        panel=PANEL,
        counts_when={"over_sampling_batch_size": ["given"]},
        on_resume="course",
    )
    mask_offpolicy_in_partial_rollout: bool = option(
        False,
        "Take the tokens that a continued answer got from earlier weights out of the loss.",
        panel=PANEL,
        counts_when={"partial_rollout": [True]},
        usual=False,
        on_resume="course",
    )


class SyncRollout(ReplaceableRollout):
    """The policy waits for rollout k, the engines wait for step k: staleness 0."""


class OneStepOff(ReplaceableRollout):
    """Rollout k+1 runs while step k trains: staleness at most one version."""

    update_weights_interval: int = option(
        1, "Publish weights every so many rollouts.", panel=ASYNC_PANEL, ge=1, on_resume="course"
    )


class FullyAsync(RolloutOptions):
    """A producer keeps the engines full, the policy drains a buffer: staleness bounded."""

    fully_async: Literal[True] = option(
        True,
        "Generate without end while the policy trains; a complete switch.",
        panel=FULLY_ASYNC_PANEL,
        selector=True,
        chooses="the rollout function",
        on_resume="course",
    )
    rollout_api: Literal["class"] = option(
        "class", "The producer is a class-based rollout function.", panel=PANEL, usual=False, on_resume="course"
    )
    update_weights_interval: int = option(
        1, "Publish weights every so many rollouts.", panel=ASYNC_PANEL, ge=1, on_resume="course"
    )
    max_weight_staleness: int = option(
        4,
        "Largest staleness in weight versions: policy version when training starts minus oldest token's version.",
        panel=FULLY_ASYNC_PANEL,
        ge=0,
        on_resume="course",
    )
    staleness_control: Literal["pace", "mask", "filter"] = option(
        "pace",
        "How the bound is held: `pace` admits only what can be used, `mask` takes old tokens out of the loss, `filter` discards.",
        panel=FULLY_ASYNC_PANEL,
        on_resume="course",
    )
    async_unused_samples_handler: Literal["retry", "drop"] = option(
        "retry",
        "What happens to groups that failed, timed out, or under `filter` are too old: sampled again, or dropped.",
        panel=FULLY_ASYNC_PANEL,
        usual=False,
        on_resume="course",
    )
    async_max_concurrent_samples: int | None = option(
        None,
        "Samples in flight at the engines (samples, not groups). By default what the staleness bound admits.",
        panel=FULLY_ASYNC_PANEL,
        ge=1,
        on_resume="course",
    )
    async_data_buffer_capacity_factor: float | None = option(
        None,
        "Groups alive (in flight or finished) in multiples of --rollout-batch-size; at least 1.",
        panel=FULLY_ASYNC_PANEL,
        ge=1,
        usual=False,
        on_resume="course",
    )
    custom_async_data_buffer_path: str | None = option(
        None, "Dotted path of your data buffer class.", panel=FULLY_ASYNC_PANEL, kind="dotted", usual=False, on_resume="course"
    )
    pause_generation_mode: Literal["retract", "in_place"] = option(
        "retract",
        "What a weight update does to running requests: recompute their cache under the new weights, or keep it.",
        panel=FULLY_ASYNC_PANEL,
        on_resume="course",
    )
