"""How answers are scored."""

from typing import Literal

from miles.config.options.base import OptionSet, option

PANEL = "Reward"
CUSTOM = {"custom_rm_path": ["given"]}


class RewardOptions(OptionSet):
    """The reward: a built-in one, or the user's own function."""

    rm_type: Literal["exact", "number"] | None = option(
        None,
        "Built-in reward: 1 if a finished answer equals the label (`exact`), or its last number the label's (`number`), else 0.",
        panel=PANEL,
        alternative="custom_rm_path",
        on_resume="course",
    )
    custom_rm_path: str | None = option(
        None,
        "Dotted path `package.module:function` of your reward, plain or async.",
        panel=PANEL,
        kind="dotted",
        alternative="rm_type",
        known_as=["reward_fn", "reward_function"],
        on_resume="course",
    )
    reward_key: str | None = option(
        None,
        "Key of the training reward when the reward function returns a mapping.",
        panel=PANEL,
        usual=False,
        counts_when=CUSTOM,
        on_resume="course",
    )
    group_rm: bool = option(
        False,
        "Call the reward once per group with all its samples.",
        panel=PANEL,
        usual=False,
        counts_when=CUSTOM,
        on_resume="course",
    )
    reward_timeout_seconds: float = option(
        60.0,
        "A reward that takes longer is stopped and its sample counted as failed.",
        panel=PANEL,
        gt=0,
        usual=False,
        counts_when=CUSTOM,
        on_resume="safe",
    )
    reward_num_workers: int = option(
        1,
        "Processes that run a plain (not async) custom reward.",
        panel=PANEL,
        ge=1,
        usual=False,
        counts_when=CUSTOM,
        on_resume="safe",
    )
